/*
 * nvlane: fio's engine for NVMe/TCP targets, over libnvlane. SPDX-License-Identifier: MIT
 *
 * Each job has a connection and a lane of its own. fio's options of the engine: addr, nsid, and the options of libnvlane that
 * say whom to trust and how. Built against the sources of the fio that loads it: cargo xtask fio-engine.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <nvlane.h>

#include "fio.h"
#include "optgroup.h"

struct nvlane_fio_options {
	void *pad; /* fio wants no option at offset 0 */
	char *addr;
	unsigned int nsid;
	unsigned int fua;
	char *hostnqn;
	char *hostid;
	char *dhchap_secret;
	char *dhchap_ctrl_secret;
	char *concat;
	char *tls_key;
	char *tls_key_compat;
	char *header_digest;
	char *data_digest;
	char *connect_timeout;
	char *timeout;
	char *give_up;
	char *replay_writes;
	char *zero_copy;
};

/* An I/O in work: longer ones than the target takes at once are several commands. */
struct request {
	struct io_u *io_u;
	unsigned int parts;
	int error;
};

struct nvlane_fio {
	nvlane_target *target;
	nvlane_lane *lane;
	unsigned long long transfer_max;
	unsigned int flags;
	unsigned int depth;
	struct request *requests;
	unsigned int *free_requests;
	unsigned int free_count;
	nvlane_completion *completions;
	struct io_u **events;
	unsigned int event_count;
};

#define TEXT(field, doc)                                                                                               \
	{                                                                                                              \
		.name = #field, .lname = #field, .type = FIO_OPT_STR_STORE,                                            \
		.off1 = offsetof(struct nvlane_fio_options, field), .help = doc, .category = FIO_OPT_C_ENGINE,         \
		.group = FIO_OPT_G_INVALID,                                                                            \
	}

static struct fio_option options[] = {
	TEXT(addr, "Address: HOST[:PORT]/NQN[?ns=NSID]"),
	{
		.name = "nsid",
		.lname = "Namespace id",
		.type = FIO_OPT_INT,
		.off1 = offsetof(struct nvlane_fio_options, nsid),
		.def = "0",
		.help = "Namespace id; 0 for that of addr, else the only one",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "fua",
		.lname = "Force unit access",
		.type = FIO_OPT_BOOL,
		.off1 = offsetof(struct nvlane_fio_options, fua),
		.def = "0",
		.help = "Writes complete once they are durable; so they do with fio's own sync=",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	TEXT(hostnqn, "Name of this host"),
	TEXT(hostid, "Identifier of this host, a UUID"),
	TEXT(dhchap_secret, "File with this host's secret"),
	TEXT(dhchap_ctrl_secret, "File with the target's secret"),
	TEXT(concat, "yes: TLS with a key that authentication generates"),
	TEXT(tls_key, "File with the pre-shared key of TLS"),
	TEXT(tls_key_compat, "yes: derive keys as libnvme before 1.16"),
	TEXT(header_digest, "yes: header digests"),
	TEXT(data_digest, "yes: data digests"),
	TEXT(connect_timeout, "Seconds for each step of a connection"),
	TEXT(timeout, "Seconds for each command"),
	TEXT(give_up, "Seconds for which a lost target is tried again"),
	TEXT(replay_writes, "yes: send writes again after a reconnect"),
	TEXT(zero_copy, "off, auto, or a size: writes without a copy in the kernel"),
	{
		.name = NULL,
	},
};

static int failed(struct thread_data *td, const char *what)
{
	log_err("nvlane: %s: %s\n", what, nvlane_error_message());
	td_verror(td, EIO, what);
	return 1;
}

static int set(nvlane_options *to, const char *name, const char *value)
{
	return value ? nvlane_options_set(to, name, value) : 0;
}

static nvlane_options *options_of(struct thread_data *td)
{
	struct nvlane_fio_options *o = td->eo;
	nvlane_options *to = nvlane_options_new();
	char depth[16];

	/* Long I/Os are several commands. */
	snprintf(depth, sizeof(depth), "%u", td->o.iodepth < 500 ? 2 * td->o.iodepth : 1000);
	if (set(to, "hostnqn", o->hostnqn) || set(to, "hostid", o->hostid) ||
	    set(to, "dhchap-secret", o->dhchap_secret) || set(to, "dhchap-ctrl-secret", o->dhchap_ctrl_secret) ||
	    set(to, "concat", o->concat) || set(to, "tls-key", o->tls_key) ||
	    set(to, "tls-key-compat", o->tls_key_compat) || set(to, "header-digest", o->header_digest) ||
	    set(to, "data-digest", o->data_digest) || set(to, "connect-timeout", o->connect_timeout) ||
	    set(to, "timeout", o->timeout) || set(to, "give-up", o->give_up) ||
	    set(to, "replay-writes", o->replay_writes) || set(to, "zero-copy", o->zero_copy) ||
	    set(to, "lanes", "1") || set(to, "depth", depth)) {
		log_err("nvlane: %s\n", nvlane_error_message());
		td_verror(td, EINVAL, "options");
		nvlane_options_free(to);
		return NULL;
	}
	return to;
}

/* Connects, and fills what the namespace is. */
static int attach(struct thread_data *td, struct nvlane_fio *own, nvlane_namespace *namespace)
{
	struct nvlane_fio_options *o = td->eo;
	nvlane_options *to;

	if (!o->addr) {
		log_err("nvlane: set addr=HOST[:PORT]/NQN[?ns=NSID]\n");
		td_verror(td, EINVAL, "addr");
		return 1;
	}
	to = options_of(td);
	if (!to)
		return 1;
	if (nvlane_open(o->addr, to, &own->target)) {
		nvlane_options_free(to);
		return failed(td, "connect");
	}
	nvlane_options_free(to);
	if (nvlane_lane_open(own->target, o->nsid, &own->lane) || nvlane_lane_namespace(own->lane, namespace))
		return failed(td, "namespace");
	if (namespace->kind != NVLANE_BLOCKS) {
		log_err("nvlane: namespace %u has keys and values, and no blocks\n", namespace->nsid);
		td_verror(td, EINVAL, "namespace");
		return 1;
	}
	return 0;
}

static void detach(struct nvlane_fio *own)
{
	nvlane_lane_close(own->lane);
	nvlane_close(own->target);
	own->lane = NULL;
	own->target = NULL;
}

/* Learns the size. The connection ends here: the job may be another process. */
static int fio_nvlane_setup(struct thread_data *td)
{
	struct nvlane_fio probe = {0};
	nvlane_namespace namespace;
	unsigned int i;
	int ddir, error;

	if (!td->files_index) {
		add_file(td, td->o.filename ? td->o.filename : "nvlane", 0, 0);
		td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
		td->o.open_files++;
	}
	error = attach(td, &probe, &namespace);
	detach(&probe);
	if (error)
		return error;
	for (ddir = 0; ddir < DDIR_RWDIR_CNT; ddir++) {
		if (td->o.min_bs[ddir] % namespace.block_bytes) {
			log_err("nvlane: bs=%llu is no multiple of the block size, %u\n", td->o.min_bs[ddir],
				namespace.block_bytes);
			td_verror(td, EINVAL, "bs");
			return 1;
		}
	}
	for (i = 0; i < td->o.nr_files; i++) {
		td->files[i]->filetype = FIO_TYPE_BLOCK;
		td->files[i]->real_file_size = namespace.size_bytes;
		fio_file_set_size_known(td->files[i]);
	}
	return 0;
}

static void fio_nvlane_cleanup(struct thread_data *td)
{
	struct nvlane_fio *own = td->io_ops_data;

	if (!own)
		return;
	detach(own);
	free(own->requests);
	free(own->free_requests);
	free(own->completions);
	free(own->events);
	free(own);
	td->io_ops_data = NULL;
}

static int fio_nvlane_init(struct thread_data *td)
{
	struct nvlane_fio_options *o = td->eo;
	struct nvlane_fio *own = calloc(1, sizeof(*own));
	nvlane_namespace namespace;
	unsigned int i;

	if (!own)
		return 1;
	td->io_ops_data = own;
	if (attach(td, own, &namespace))
		return 1;
	own->transfer_max = namespace.transfer_bytes_max;
	own->flags = o->fua || td->o.sync_io ? NVLANE_FUA : 0;
	own->depth = nvlane_lane_depth(own->lane);
	own->requests = calloc(td->o.iodepth, sizeof(*own->requests));
	own->free_requests = calloc(td->o.iodepth, sizeof(*own->free_requests));
	own->events = calloc(td->o.iodepth, sizeof(*own->events));
	own->completions = calloc(own->depth, sizeof(*own->completions));
	if (!own->requests || !own->free_requests || !own->events || !own->completions)
		return 1;
	for (i = 0; i < td->o.iodepth; i++)
		own->free_requests[own->free_count++] = td->o.iodepth - 1 - i;
	return 0;
}

static int submit(struct nvlane_fio *own, struct io_u *io_u, unsigned long long at, unsigned long long length,
		  uint64_t user)
{
	uint8_t *buffer = (uint8_t *)io_u->xfer_buf + at;

	switch (io_u->ddir) {
	case DDIR_READ:
		return nvlane_lane_read(own->lane, buffer, length, io_u->offset + at, user);
	case DDIR_WRITE:
		return nvlane_lane_write(own->lane, buffer, length, io_u->offset + at, own->flags, user);
	case DDIR_TRIM:
		return nvlane_lane_discard(own->lane, io_u->offset, length, user);
	default:
		return nvlane_lane_flush(own->lane, user);
	}
}

static int error_of(int code)
{
	switch (code) {
	case NVLANE_ERROR_TIMED_OUT:
		return ETIMEDOUT;
	case NVLANE_ERROR_ARGUMENT:
		return EINVAL;
	case NVLANE_ERROR_UNSUPPORTED:
		return EOPNOTSUPP;
	case NVLANE_ERROR_UNREACHABLE:
		return ENOTCONN;
	default:
		return EIO;
	}
}

static enum fio_q_status fio_nvlane_queue(struct thread_data *td, struct io_u *io_u)
{
	struct nvlane_fio *own = td->io_ops_data;
	unsigned long long length = io_u->xfer_buflen, at = 0, step = length;
	unsigned int slot, parts = 1;
	struct request *request;
	int code = 0;

	fio_ro_check(td, io_u);
	if (ddir_rw(io_u->ddir) && io_u->ddir != DDIR_TRIM && length > own->transfer_max) {
		step = own->transfer_max;
		parts = (length + step - 1) / step;
		if (parts > own->depth) {
			log_err("nvlane: bs=%llu is %u commands, more than the depth, %u\n", length, parts, own->depth);
			io_u->error = EINVAL;
			return FIO_Q_COMPLETED;
		}
	}
	if (!own->free_count || nvlane_lane_outstanding(own->lane) + parts > own->depth)
		return FIO_Q_BUSY;
	slot = own->free_requests[--own->free_count];
	request = &own->requests[slot];
	request->io_u = io_u;
	request->parts = 0;
	request->error = 0;
	do {
		unsigned long long left = length - at;

		code = submit(own, io_u, at, left < step ? left : step, slot);
		if (code)
			break;
		request->parts++;
		at += step;
	} while (at < length);
	if (code) {
		request->error = error_of(code);
		log_err("nvlane: %s at %llu: %s\n", io_ddir_name(io_u->ddir), io_u->offset, nvlane_error_message());
		/* Parts that were submitted end first. */
		if (!request->parts) {
			io_u->error = request->error;
			own->free_requests[own->free_count++] = slot;
			return FIO_Q_COMPLETED;
		}
	}
	return FIO_Q_QUEUED;
}

static void on_completion(struct nvlane_fio *own, const nvlane_completion *completion)
{
	struct request *request = &own->requests[completion->user];

	if (completion->error && !request->error) {
		char text[160];

		nvlane_completion_text(completion, text, sizeof(text));
		log_err("nvlane: %s at %llu: %s\n", io_ddir_name(request->io_u->ddir), request->io_u->offset, text);
		request->error = error_of(completion->error);
	}
	if (--request->parts)
		return;
	request->io_u->error = request->error;
	own->events[own->event_count++] = request->io_u;
	own->free_requests[own->free_count++] = completion->user;
}

static int fio_nvlane_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t)
{
	struct nvlane_fio *own = td->io_ops_data;
	/* A signal ends fio between two waits. */
	int wait_ms = t ? t->tv_sec * 1000 + t->tv_nsec / 1000000 : 1000;

	own->event_count = 0;
	do {
		/* As many commands as events are wanted: those of long I/Os are more. */
		unsigned int room = max - own->event_count < own->depth ? max - own->event_count : own->depth;
		int count, i;

		if (min)
			count = nvlane_lane_wait(own->lane, own->completions, room, wait_ms);
		else
			count = nvlane_lane_poll(own->lane, own->completions, room);
		if (count < 0) {
			log_err("nvlane: %s\n", nvlane_error_message());
			return -EIO;
		}
		for (i = 0; i < count; i++)
			on_completion(own, &own->completions[i]);
		if (!count && (t || td->terminate))
			break;
	} while (own->event_count < min && nvlane_lane_outstanding(own->lane));
	return own->event_count;
}

static struct io_u *fio_nvlane_event(struct thread_data *td, int event)
{
	struct nvlane_fio *own = td->io_ops_data;

	return own->events[event];
}

/* The lane is the file. */
static int fio_nvlane_open(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int fio_nvlane_close(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int fio_nvlane_invalidate(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

struct ioengine_ops ioengine = {
	.name = "nvlane",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_RAWIO,
	.setup = fio_nvlane_setup,
	.init = fio_nvlane_init,
	.queue = fio_nvlane_queue,
	/* No commit: fio asks for it after each I/O, and the lane sends several at once when fio looks for completions. */
	.getevents = fio_nvlane_getevents,
	.event = fio_nvlane_event,
	.cleanup = fio_nvlane_cleanup,
	.open_file = fio_nvlane_open,
	.close_file = fio_nvlane_close,
	.invalidate = fio_nvlane_invalidate,
	.option_struct_size = sizeof(struct nvlane_fio_options),
	.options = options,
};
