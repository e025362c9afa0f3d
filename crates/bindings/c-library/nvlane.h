/*
 * libnvlane: blocks and keys and values of NVMe/TCP targets. Made by cbindgen: `cargo xtask c-header`.
 * Licensed under MIT or Apache-2.0, at your option. Guide: docs/guide/c.md
 *
 * Pointers. A pointer is NULL, which is refused where it makes no sense, or valid: of a handle that was opened and not
 * closed, or of memory of the stated length. Texts end with a null byte and are UTF-8. Arguments are not used after the call,
 * with one exception: the buffer of a command that is submitted on a lane belongs to the library until its completion is
 * taken or the lane is closed. Until then it must stay in place, and the program neither writes to it nor, of a read or get,
 * reads from it. What a call returns (texts, outcomes) states how long it is valid; nothing is to be freed but handles, each
 * by its own function. Memory that a read or get fills need not be initialized.
 *
 * Threads. A nvlane_target may be used by any number of threads at once. Every other handle is used by one thread at a time,
 * not always the same: a program with several threads opens a handle for each. Texts of errors are kept for each thread.
 * nvlane_open starts one thread for the target, which blocks all signals. No call raises SIGPIPE.
 *
 * Fork. A handle belongs to the process that made it: in a child its calls fail with NVLANE_ERROR_FORKED, and its close
 * frees nothing and leaves the parent's connection alone. The child opens handles of its own. Descriptors are closed by exec.
 *
 * Errors. A function that returns int returns NVLANE_OK (0) or a count, or one of NVLANE_ERROR_..., all negative; then
 * nvlane_error_message() says what is wrong in words. A bug of the library ends no program: it is NVLANE_ERROR_INTERNAL, and
 * the handle refuses further calls.
 *
 * Integers are those of the machine. Offsets and lengths are in bytes, times in the stated unit.
 */

#ifndef NVLANE_H
#define NVLANE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/**
 * Success.
 */
#define NVLANE_OK 0

/**
 * An argument is wrong: the text says which. Nothing has happened.
 */
#define NVLANE_ERROR_ARGUMENT -1

/**
 * The target cannot be reached, or does not accept this host.
 */
#define NVLANE_ERROR_CONNECTION -2

/**
 * There is no such namespace, or it is of another kind.
 */
#define NVLANE_ERROR_NAMESPACE -3

/**
 * The target, or this build of the library, does not have what is asked for.
 */
#define NVLANE_ERROR_UNSUPPORTED -4

/**
 * The lane has as many commands outstanding as it takes: take completions first.
 */
#define NVLANE_ERROR_FULL -5

/**
 * The target ended the command with a status, which is beside the code.
 */
#define NVLANE_ERROR_STATUS -6

/**
 * The connection was lost before the answer: the command may or may not have happened, and may still happen.
 */
#define NVLANE_ERROR_INTERRUPTED -7

/**
 * No answer in time: the command may or may not have happened, and may still happen.
 */
#define NVLANE_ERROR_TIMED_OUT -8

/**
 * The first flush after a reconnect: earlier writes that were not flushed may be lost, and must be written again.
 */
#define NVLANE_ERROR_UNFLUSHED -9

/**
 * The command was cancelled before it happened.
 */
#define NVLANE_ERROR_CANCELLED -10

/**
 * The target is gone for good, or was away for too long. The command has not happened.
 */
#define NVLANE_ERROR_UNREACHABLE -11

/**
 * Other storage than before answers under the namespace's id. The command has not happened.
 */
#define NVLANE_ERROR_REPLACED -12

/**
 * There is no such key.
 */
#define NVLANE_ERROR_NO_KEY -13

/**
 * There is such a key, and the value was to be stored only if there is none.
 */
#define NVLANE_ERROR_KEY_EXISTS -14

/**
 * The value is longer than the buffer, which has its first bytes.
 */
#define NVLANE_ERROR_TRUNCATED -15

/**
 * The data differs from that on the target.
 */
#define NVLANE_ERROR_MISCOMPARE -16

/**
 * A call of the system failed: no memory, descriptor or thread is left.
 */
#define NVLANE_ERROR_SYSTEM -17

/**
 * The handle was made before a fork, of which this is the child: it belongs to the parent.
 */
#define NVLANE_ERROR_FORKED -18

/**
 * A bug of the library: its message is on standard error, and the handle takes no further call but its close.
 */
#define NVLANE_ERROR_INTERNAL -19

/**
 * Flag of writes: complete once the data is durable.
 */
#define NVLANE_FUA (1 << 0)

/**
 * Flag of write zeroes: the target may deallocate the blocks.
 */
#define NVLANE_DEALLOCATE (1 << 1)

/**
 * Flag of a value to set: only if there is no such key.
 */
#define NVLANE_IF_ABSENT (1 << 2)

/**
 * Flag of a value to set: only if there is such a key.
 */
#define NVLANE_IF_PRESENT (1 << 3)

/**
 * A namespace of blocks.
 */
#define NVLANE_BLOCKS 1

/**
 * A namespace of keys and values.
 */
#define NVLANE_KEY_VALUE 2

/**
 * Operations on keys that one call executes together: made by nvlane_batch_new.
 */
typedef struct nvlane_batch nvlane_batch;

/**
 * A namespace of blocks, with calls that wait for their results: opened by nvlane_blocks_open.
 */
typedef struct nvlane_blocks nvlane_blocks;

/**
 * A namespace of keys and values, with calls that wait for their results: opened by nvlane_key_value_open. A key has 1 to 16
 * bytes, any bytes; with a target of nvlane up to 250, else NVLANE_ERROR_UNSUPPORTED.
 */
typedef struct nvlane_key_value nvlane_key_value;

/**
 * A queue of commands on one connection, to one namespace: opened by nvlane_lane_open. It has no thread: it sends and receives
 * within calls.
 */
typedef struct nvlane_lane nvlane_lane;

/**
 * Options of connections: made by nvlane_options_new.
 */
typedef struct nvlane_options nvlane_options;

/**
 * A connected subsystem of a target: opened by nvlane_open. It has a thread, which keeps the association alive and
 * connects it again after a loss. The only kind of handle that several threads may use at once.
 */
typedef struct nvlane_target nvlane_target;

/**
 * The outcome of one operation of a batch.
 */
typedef struct nvlane_outcome {
  /**
   * Of a get, the bytes of the value, as far as there is room; else NULL. It is valid until the batch is run again, cleared or
   * freed.
   */
  const uint8_t *data;
  /**
   * Bytes of `data`.
   */
  size_t data_length;
  /**
   * Of a get or an exists, the length of the value.
   */
  uint64_t result;
  /**
   * NVLANE_OK, or why the operation failed: NVLANE_ERROR_TRUNCATED for a value longer than its room.
   */
  int error;
  /**
   * The NVMe status, if the target gave one other than success; else 0.
   */
  uint16_t status;
  /**
   * 0.
   */
  uint16_t reserved;
} nvlane_outcome;

/**
 * What a namespace is.
 */
typedef struct nvlane_namespace {
  /**
   * Its id.
   */
  uint32_t nsid;
  /**
   * NVLANE_BLOCKS or NVLANE_KEY_VALUE.
   */
  uint32_t kind;
  /**
   * Its size, bytes; of keys and values: their capacity, 0 if the target does not say.
   */
  uint64_t size_bytes;
  /**
   * Size of a block, bytes: offsets and lengths are multiples of it. 0 for keys and values.
   */
  uint32_t block_bytes;
  /**
   * Longest transfer of one command, or longest value, bytes.
   */
  uint32_t transfer_bytes_max;
  /**
   * Longest key, bytes; 0 for blocks.
   */
  uint32_t key_bytes_max;
  /**
   * 0.
   */
  uint32_t reserved;
} nvlane_namespace;

/**
 * The end of a command.
 */
typedef struct nvlane_completion {
  /**
   * The value that it was submitted with.
   */
  uint64_t user;
  /**
   * Its result, if it succeeded: of a get, the length of the value, which may be more than was received.
   */
  uint64_t result;
  /**
   * Bytes received into its buffer.
   */
  uint32_t received;
  /**
   * NVLANE_OK, or why it failed.
   */
  int error;
  /**
   * The NVMe status, if the target gave one other than success; else 0.
   */
  uint16_t status;
  /**
   * 0.
   */
  uint16_t reserved[3];
} nvlane_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes an empty batch for a namespace; `*batch` is a handle, to be freed with nvlane_batch_free. NVLANE_ERROR_UNSUPPORTED if the
 * target has no batches.
 */
int nvlane_batch_new(struct nvlane_key_value *key_value,
                     struct nvlane_batch **batch);

/**
 * Frees a batch; NULL is allowed.
 */
void nvlane_batch_free(struct nvlane_batch *batch);

/**
 * Empties a batch.
 */
int nvlane_batch_clear(struct nvlane_batch *batch);

/**
 * Adds the storing of a value, of which a copy is kept; `flags` as of nvlane_set.
 *
 * Of every addition: NVLANE_ERROR_ARGUMENT if the batch is full, which is then unchanged.
 */
int nvlane_batch_set(struct nvlane_batch *batch,
                     const uint8_t *key,
                     size_t key_length,
                     const uint8_t *value,
                     size_t length,
                     uint32_t flags);

/**
 * Adds the retrieval of a value's first `room` bytes, at least 1.
 */
int nvlane_batch_get(struct nvlane_batch *batch,
                     const uint8_t *key,
                     size_t key_length,
                     size_t room);

/**
 * Adds the deletion of a key.
 */
int nvlane_batch_delete(struct nvlane_batch *batch,
                        const uint8_t *key,
                        size_t key_length);

/**
 * Adds the question whether a key exists: NVLANE_OK, with the value's length, or NVLANE_ERROR_NO_KEY.
 */
int nvlane_batch_exists(struct nvlane_batch *batch,
                        const uint8_t *key,
                        size_t key_length);

/**
 * Adds the pinning of a pair for `seconds`, at most 86,400: it is not evicted until they are over, or until it was unpinned as
 * often. With 0 seconds one pin is taken back. NVLANE_OK, NVLANE_ERROR_NO_KEY, or NVLANE_ERROR_STATUS with status 81h if pinned pairs would
 * have more than half of the memory.
 */
int nvlane_batch_pin(struct nvlane_batch *batch,
                     const uint8_t *key,
                     size_t key_length,
                     uint32_t seconds);

/**
 * Executes a batch and waits for it. The failure of one operation does not stop the next. Returns the number of outcomes, or an
 * error: then no operation was executed, but for NVLANE_ERROR_INTERRUPTED and NVLANE_ERROR_TIMED_OUT, after which some may have
 * been. The operations stay in the batch.
 */
int nvlane_batch_run(struct nvlane_key_value *key_value,
                     struct nvlane_batch *batch);

/**
 * The outcome of operation `index`, from 0, in the order in which they were added.
 */
int nvlane_batch_outcome(struct nvlane_batch *batch,
                         size_t index,
                         struct nvlane_outcome *outcome);

/**
 * Opens a namespace of blocks of a target: `nsid` is its id, or 0 for the one that the address names, else the only one. On
 * success `*blocks` is a handle; close it with nvlane_blocks_close. The target may be closed before.
 */
int nvlane_blocks_open(const struct nvlane_target *target,
                       uint32_t nsid,
                       struct nvlane_blocks **blocks);

/**
 * Closes a handle; NULL is allowed.
 */
void nvlane_blocks_close(struct nvlane_blocks *blocks);

/**
 * What the namespace is (size, block size), as the target reports it now; later calls are checked against that.
 */
int nvlane_blocks_namespace(struct nvlane_blocks *blocks,
                            struct nvlane_namespace *namespace_);

/**
 * Reads `length` bytes from byte `offset` on into `buffer`. Both are multiples of the block size; any length is split into
 * commands that are outstanding together. Data arrives in the buffer itself.
 */
int nvlane_read(struct nvlane_blocks *blocks,
                uint8_t *buffer,
                size_t length,
                uint64_t offset);

/**
 * As nvlane_read, into the memory of a list.
 */
int nvlane_readv(struct nvlane_blocks *blocks,
                 const struct iovec *list,
                 size_t count,
                 uint64_t offset);

/**
 * Writes `length` bytes at byte `offset`; `flags` is 0 or NVLANE_FUA. Without it the data is durable after the next nvlane_flush.
 * After a failure a part may have been written.
 */
int nvlane_write(struct nvlane_blocks *blocks,
                 const uint8_t *buffer,
                 size_t length,
                 uint64_t offset,
                 uint32_t flags);

/**
 * As nvlane_write, from the memory of a list.
 */
int nvlane_writev(struct nvlane_blocks *blocks,
                  const struct iovec *list,
                  size_t count,
                  uint64_t offset,
                  uint32_t flags);

/**
 * Makes all writes durable that have returned before. The first call of each handle after a reconnect fails with
 * NVLANE_ERROR_UNFLUSHED: its writes since the last flush may be lost, and must be repeated.
 */
int nvlane_flush(struct nvlane_blocks *blocks);

/**
 * Deallocates (TRIM) a range of whole blocks, in bytes.
 */
int nvlane_discard(struct nvlane_blocks *blocks,
                   uint64_t offset,
                   uint64_t length);

/**
 * Writes zeroes to a range of whole blocks, in bytes; `flags` is NVLANE_FUA, NVLANE_DEALLOCATE (the target may deallocate the
 * blocks), both or 0.
 */
int nvlane_write_zeroes(struct nvlane_blocks *blocks,
                        uint64_t offset,
                        uint64_t length,
                        uint32_t flags);

/**
 * The text of this thread's last error: what failed, why, and advice where there is any. It is never NULL, and is valid until
 * the next call of this thread fails.
 */
const char *nvlane_error_message(void);

/**
 * The NVMe status of this thread's last error, as in bits 15 to 0 of the completion's last word; 0 if the target gave none.
 */
uint16_t nvlane_error_status(void);

/**
 * What a code means, as a short text that is valid for ever.
 */
const char *nvlane_error_text(int code);

/**
 * Opens a namespace of keys and values of a target: `nsid` is its id, or 0 for the one that the address names, else the only one
 * of its kind. On success `*key_value` is a handle; close it with nvlane_key_value_close. The target may be closed before.
 */
int nvlane_key_value_open(const struct nvlane_target *target,
                          uint32_t nsid,
                          struct nvlane_key_value **key_value);

/**
 * Closes a handle; NULL is allowed. Batches that were made of it may be freed later.
 */
void nvlane_key_value_close(struct nvlane_key_value *key_value);

/**
 * What the namespace is (longest value and key), as the target reports it now.
 */
int nvlane_key_value_namespace(struct nvlane_key_value *key_value,
                               struct nvlane_namespace *namespace_);

/**
 * Stores a value, replacing any other. `flags` is 0, or NVLANE_IF_ABSENT (NVLANE_ERROR_KEY_EXISTS if there is such a key), or
 * NVLANE_IF_PRESENT (NVLANE_ERROR_NO_KEY if there is none). The value is sent from where it lies.
 */
int nvlane_set(struct nvlane_key_value *key_value,
               const uint8_t *key,
               size_t key_length,
               const uint8_t *value,
               size_t length,
               uint32_t flags);

/**
 * Retrieves a value into a buffer of `room` bytes, at least 1; it arrives there without a copy. `*length` is the length of the
 * whole value, unless `length` is NULL. NVLANE_ERROR_NO_KEY if there is no such key, NVLANE_ERROR_TRUNCATED if the value is longer
 * than the buffer, which then has its first bytes, or is unchanged if the key has more than 16 bytes, or the buffer more than one
 * command transfers.
 */
int nvlane_get(struct nvlane_key_value *key_value,
               const uint8_t *key,
               size_t key_length,
               uint8_t *buffer,
               size_t room,
               size_t *length);

/**
 * Deletes a key and its value. Without such a key it succeeds too, unless the namespace is set to refuse that: then
 * NVLANE_ERROR_NO_KEY.
 */
int nvlane_delete(struct nvlane_key_value *key_value,
                  const uint8_t *key,
                  size_t key_length);

/**
 * Whether a key exists: 1 or 0, or an error.
 */
int nvlane_exists(struct nvlane_key_value *key_value,
                  const uint8_t *key,
                  size_t key_length);

/**
 * Makes all changes durable that have returned before, where the target answers before that. As nvlane_flush.
 */
int nvlane_key_value_flush(struct nvlane_key_value *key_value);

/**
 * Opens a lane to a namespace of a target: `nsid` is its id, or 0 for the one that the address names, else the only one. On
 * success `*lane` is a handle; close it with nvlane_lane_close. The target may be closed before.
 */
int nvlane_lane_open(const struct nvlane_target *target,
                     uint32_t nsid,
                     struct nvlane_lane **lane);

/**
 * Closes a lane; NULL is allowed. Commands that are outstanding end without a completion: they may or may not have happened.
 * On return the buffers of all commands belong to the caller again.
 */
void nvlane_lane_close(struct nvlane_lane *lane);

/**
 * What the lane's namespace is, as the target reports it now; later commands are checked against that.
 */
int nvlane_lane_namespace(struct nvlane_lane *lane,
                          struct nvlane_namespace *namespace_);

/**
 * Submits a read of `length` bytes from byte `offset` on into `buffer`; both are multiples of the block size. The completion
 * carries `user`.
 *
 * Of every submission: it is sent by the next nvlane_lane_ring, nvlane_lane_poll or nvlane_lane_wait. The buffer belongs to the
 * library until the completion is taken, or the lane is closed. Returns NVLANE_OK, NVLANE_ERROR_FULL, NVLANE_ERROR_ARGUMENT
 * (also for more than one command transfers) or NVLANE_ERROR_UNREACHABLE; after an error there is no completion.
 */
int nvlane_lane_read(struct nvlane_lane *lane,
                     uint8_t *buffer,
                     size_t length,
                     uint64_t offset,
                     uint64_t user);

/**
 * As nvlane_lane_read, into the memory of a list, which is not used after the call.
 */
int nvlane_lane_readv(struct nvlane_lane *lane,
                      const struct iovec *list,
                      size_t count,
                      uint64_t offset,
                      uint64_t user);

/**
 * Submits a write of `length` bytes at byte `offset`; `flags` is 0 or NVLANE_FUA. The buffer is only read.
 */
int nvlane_lane_write(struct nvlane_lane *lane,
                      const uint8_t *buffer,
                      size_t length,
                      uint64_t offset,
                      uint32_t flags,
                      uint64_t user);

/**
 * As nvlane_lane_write, from the memory of a list, which is not used after the call.
 */
int nvlane_lane_writev(struct nvlane_lane *lane,
                       const struct iovec *list,
                       size_t count,
                       uint64_t offset,
                       uint32_t flags,
                       uint64_t user);

/**
 * Submits a comparison of `length` bytes with those at byte `offset` of the namespace; NVLANE_ERROR_MISCOMPARE if they differ.
 */
int nvlane_lane_compare(struct nvlane_lane *lane,
                        const uint8_t *buffer,
                        size_t length,
                        uint64_t offset,
                        uint64_t user);

/**
 * Submits a flush: makes every write durable whose completion was taken before. Of either kind of namespace. The first one of
 * each handle after a reconnect ends with NVLANE_ERROR_UNFLUSHED: flush by the handle that wrote.
 */
int nvlane_lane_flush(struct nvlane_lane *lane,
                      uint64_t user);

/**
 * Submits a deallocation (TRIM) of a range of whole blocks, in bytes.
 */
int nvlane_lane_discard(struct nvlane_lane *lane,
                        uint64_t offset,
                        uint64_t length,
                        uint64_t user);

/**
 * Submits a write of zeroes to a range of whole blocks, in bytes; `flags` is NVLANE_FUA, NVLANE_DEALLOCATE, both or 0.
 */
int nvlane_lane_write_zeroes(struct nvlane_lane *lane,
                             uint64_t offset,
                             uint64_t length,
                             uint32_t flags,
                             uint64_t user);

/**
 * Submits the storing of a value; `flags` is 0, NVLANE_IF_ABSENT or NVLANE_IF_PRESENT. The key is not used after the call, the
 * value belongs to the library until the completion is taken.
 *
 * Of every command on a key: it has 1 to 16 bytes, with a target of nvlane up to 250. One on a key of more than 16 is two commands
 * to the target, sent together: it takes two places of the lane's depth, and is not sent again after a reconnect. So is one on a
 * value, or with a buffer, that is longer than one command transfers (beside block namespaces, 1 MiB).
 */
int nvlane_lane_set(struct nvlane_lane *lane,
                    const uint8_t *key,
                    size_t key_length,
                    const uint8_t *value,
                    size_t length,
                    uint32_t flags,
                    uint64_t user);

/**
 * Submits the retrieval of a value into a buffer of `room` bytes, at least 1. The result of the completion is the length of the
 * value; the buffer has its first bytes, as far as there is room. NVLANE_ERROR_NO_KEY if there is no such key. Where the get is two
 * commands, a value that is longer than the buffer ends with NVLANE_ERROR_TRUNCATED, and its length is not told.
 */
int nvlane_lane_get(struct nvlane_lane *lane,
                    const uint8_t *key,
                    size_t key_length,
                    uint8_t *buffer,
                    size_t room,
                    uint64_t user);

/**
 * Submits the deletion of a key and its value, as nvlane_delete.
 */
int nvlane_lane_delete(struct nvlane_lane *lane,
                       const uint8_t *key,
                       size_t key_length,
                       uint64_t user);

/**
 * Submits the question whether a key exists: NVLANE_OK or NVLANE_ERROR_NO_KEY.
 */
int nvlane_lane_exists(struct nvlane_lane *lane,
                       const uint8_t *key,
                       size_t key_length,
                       uint64_t user);

/**
 * Cancels the commands that were submitted with `user`. Each still completes, with NVLANE_ERROR_CANCELLED if it was stopped.
 * Returns 1 if there was one, else 0.
 */
int nvlane_lane_cancel(struct nvlane_lane *lane,
                       uint64_t user);

/**
 * Sends all submitted commands, as far as the socket takes them; the rest is sent by the next poll or wait.
 */
int nvlane_lane_ring(struct nvlane_lane *lane);

/**
 * Takes completions without blocking: sends what was submitted, if that is worth a send now, receives, and handles timeouts and
 * reconnects. Fills at most `count` entries of `completions`; more are kept for the next call. Returns the number of entries, or
 * an error.
 */
int nvlane_lane_poll(struct nvlane_lane *lane,
                     struct nvlane_completion *completions,
                     size_t count);

/**
 * As nvlane_lane_poll, and waits for completions, at most `timeout_ms` milliseconds; a negative time is no limit. Spins as long
 * as that has paid off, then sleeps. Returns 0 after the time, or if no command is outstanding.
 */
int nvlane_lane_wait(struct nvlane_lane *lane,
                     struct nvlane_completion *completions,
                     size_t count,
                     int timeout_ms);

/**
 * A descriptor for event loops (poll, epoll, libuv, ...), or an error. It is readable while nvlane_lane_poll has something to do:
 * completions, a timeout, a reconnect. Submit, call nvlane_lane_ring, and when it is readable call nvlane_lane_poll until that
 * returns 0. It is the same in every call, and is closed with the lane: only wait for it, and do not read or close it.
 */
int nvlane_lane_descriptor(struct nvlane_lane *lane);

/**
 * Commands that were submitted, and whose completions were not taken.
 */
uint32_t nvlane_lane_outstanding(struct nvlane_lane *lane);

/**
 * Commands that can be outstanding: the option depth, or less if the target takes fewer.
 */
uint32_t nvlane_lane_depth(struct nvlane_lane *lane);

/**
 * Writes what a completion means into `text`, at most `size` bytes with the null byte at the end: its error, with the target's
 * status if there is one. Returns the length of the whole text.
 */
size_t nvlane_completion_text(const struct nvlane_completion *completion,
                              char *text,
                              size_t size);

/**
 * Makes a set of options, all as by default. Free it with nvlane_options_free.
 */
struct nvlane_options *nvlane_options_new(void);

/**
 * Sets an option to a value, both as text, which is not used after the call:
 *
 * | name | value |
 * |---|---|
 * | hostnqn, hostid | name and identifier (UUID) of this host; by default those of this machine |
 * | dhchap-secret, dhchap-ctrl-secret | secret of this host, and that which the target must have: DHHC-1:..., or a file with it |
 * | reauthenticate | seconds after which each queue authenticates again |
 * | concat | yes: TLS 1.3 with a key that authentication generates |
 * | tls-key | pre-shared key of TLS 1.3: NVMeTLSkey-1:..., or a file with it; every connection then uses TLS |
 * | tls-key-compat | yes: derive keys as libnvme before 1.16 |
 * | header-digest, data-digest | yes or no (no) |
 * | connect-timeout | seconds for each step of a connection, and for which opening a handle waits for a lost target (10) |
 * | timeout | seconds after which a command without an answer is aborted (30) |
 * | keep-alive | seconds after which the target ends a silent association (10) |
 * | give-up | seconds for which a lost target is tried again (600); 0: it is not tried again |
 * | fast-fail | seconds for which commands wait for a lost target (as long as give-up), and opening a handle, if shorter |
 * | replay-writes | yes: send writes again after a reconnect; see docs/guide/c.md |
 * | lanes | queues to ask the target for: the number of handles that can be open (8) |
 * | depth | commands outstanding on a lane (128) |
 * | zero-copy | off, auto, or a size such as 64K: which writes are sent without a copy in the kernel (auto) |
 *
 * Returns NVLANE_OK, or NVLANE_ERROR_ARGUMENT: the text says what would be right.
 */
int nvlane_options_set(struct nvlane_options *options,
                       const char *name,
                       const char *value);

/**
 * Frees options; NULL is allowed. Targets that were opened with them keep what they need.
 */
void nvlane_options_free(struct nvlane_options *options);

/**
 * The version of the library, such as "0.1.0": a text that is valid for ever.
 */
const char *nvlane_version(void);

/**
 * Connects to a subsystem: `address` is `HOST[:PORT]/NQN[?ns=NSID]` or `traddr=... trsvcid=... subnqn=... ns=...`. `options` may
 * be NULL. Both are not used after the call. On success `*target` is a handle; close it with nvlane_close. The call makes one
 * attempt, and waits for it.
 */
int nvlane_open(const char *address,
                struct nvlane_options *options,
                struct nvlane_target **target);

/**
 * Closes a target; NULL is allowed. Handles that were opened of it keep the association until they are closed too.
 */
void nvlane_close(struct nvlane_target *target);

/**
 * The namespaces of a target, as it reports them now: fills at most `count` entries of `namespaces`. Returns the number of all
 * namespaces, or an error.
 */
int nvlane_namespaces(const struct nvlane_target *target,
                      struct nvlane_namespace *namespaces,
                      size_t count);

/**
 * Whether the target is connected now: 1 or 0, or an error. While it is not, commands wait (options give-up, fast-fail).
 */
int nvlane_is_connected(const struct nvlane_target *target);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVLANE_H */
