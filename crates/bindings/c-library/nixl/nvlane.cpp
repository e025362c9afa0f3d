/*
 * nvlane: NIXL's backend for key-value namespaces of NVMe/TCP targets, over libnvlane. SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * An object is a key and its value: memory of the process (DRAM_SEG) is written as the value of a key (OBJ_SEG), or receives it,
 * where it lies. Whole values only: one of another length than its descriptor is NIXL_ERR_MISMATCH.
 *
 * Each lane has a thread, which sleeps while nothing is outstanding, so a transfer proceeds whether or not it is checked.
 * Built against the headers of the NIXL that loads it: cargo xtask nixl-plugin.
 */
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <backend/backend_engine.h>
#include <backend/backend_plugin.h>
#include <nvlane.h>

namespace {

constexpr size_t key_bytes_max = 250;
constexpr int batch_count_max = 1024;

/* On standard error; the same text at most once a second. */
[[gnu::format(printf, 1, 2)]] void report(const char *format, ...)
{
	static std::mutex mutex;
	static std::string last;
	static std::chrono::steady_clock::time_point last_at;
	va_list arguments;
	char text[512];

	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	std::lock_guard<std::mutex> lock(mutex);
	auto now = std::chrono::steady_clock::now();
	if (last == text && now - last_at < std::chrono::seconds(1))
		return;
	last = text;
	last_at = now;
	fprintf(stderr, "nvlane: %s\n", text);
}

nixl_status_t status_of(int error)
{
	switch (error) {
	case NVLANE_OK:
		return NIXL_SUCCESS;
	case NVLANE_ERROR_ARGUMENT:
		return NIXL_ERR_INVALID_PARAM;
	case NVLANE_ERROR_UNSUPPORTED:
		return NIXL_ERR_NOT_SUPPORTED;
	case NVLANE_ERROR_NO_KEY:
		return NIXL_ERR_NOT_FOUND;
	case NVLANE_ERROR_TRUNCATED:
		return NIXL_ERR_MISMATCH;
	case NVLANE_ERROR_CANCELLED:
		return NIXL_ERR_CANCELED;
	default:
		/* Not NIXL_ERR_REMOTE_DISCONNECT, after which an agent forgets all objects: the target may come back. */
		return NIXL_ERR_BACKEND;
	}
}

/* Closes handles of libnvlane. */
struct closer {
	void operator()(nvlane_options *options) const { nvlane_options_free(options); }
	void operator()(nvlane_target *target) const { nvlane_close(target); }
	void operator()(nvlane_lane *lane) const { nvlane_lane_close(lane); }
	void operator()(nvlane_key_value *keys) const { nvlane_key_value_close(keys); }
	void operator()(nvlane_batch *batch) const { nvlane_batch_free(batch); }
};
template<typename T> using handle = std::unique_ptr<T, closer>;

[[noreturn]] void fail(const std::string &what)
{
	throw std::runtime_error(what + ": " + nvlane_error_message());
}

void check(int code, const std::string &what)
{
	if (code < 0)
		fail(what);
}

const uint8_t *bytes(const std::string &text)
{
	return reinterpret_cast<const uint8_t *>(text.data());
}

/* A registered object. */
struct object : nixlBackendMD {
	explicit object(std::string name) : nixlBackendMD(true), key(std::move(name)) {}
	const std::string key;
};

std::string key_of(const nixlBlobDesc &descriptor)
{
	return descriptor.metaInfo.empty() ? std::to_string(descriptor.devId) : descriptor.metaInfo;
}

struct request;

/* One value to move. */
struct item {
	request *of;
	std::string key;
	uint8_t *memory;
	size_t length;
};

/* A transfer. While some of its items are left, they belong to threads of lanes. */
struct request : nixlBackendReqH {
	std::vector<item> items;
	bool is_write = false;
	std::atomic<size_t> left{0};
	/* The first failure. */
	std::atomic<nixl_status_t> status{NIXL_SUCCESS};
	std::atomic<bool> is_cancelled{false};
};

/* Where threads of lanes tell that a request has ended. */
struct ends {
	std::mutex mutex;
	std::condition_variable changed;

	void of(item *done, nixl_status_t status)
	{
		request *whole = done->of;

		if (status != NIXL_SUCCESS) {
			nixl_status_t good = NIXL_SUCCESS;
			whole->status.compare_exchange_strong(good, status);
		}
		/* The last one is told under the lock, since the request may be gone after that. */
		std::lock_guard<std::mutex> lock(mutex);
		if (whole->left.fetch_sub(1) == 1)
			changed.notify_all();
	}

	void wait(const request *whole)
	{
		std::unique_lock<std::mutex> lock(mutex);
		changed.wait(lock, [whole] { return whole->left == 0; });
	}
};

/* A lane, and the thread that has it. */
class worker {
public:
	worker(nvlane_target *target, uint32_t nsid, ends &done) : ends_(done)
	{
		nvlane_lane *lane = nullptr;

		check(nvlane_lane_open(target, nsid, &lane), "lane");
		lane_.reset(lane);
		lane_descriptor_ = nvlane_lane_descriptor(lane);
		check(lane_descriptor_, "event descriptor");
		wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (wake_ < 0)
			throw std::runtime_error("no eventfd");
		slots_.resize(nvlane_lane_depth(lane));
		for (size_t slot = 0; slot < slots_.size(); slot++)
			free_.push_back(slot);
		thread_ = std::thread([this] { run(); });
	}

	~worker()
	{
		is_ending_ = true;
		wake();
		thread_.join();
		close(wake_);
	}

	void add(std::vector<item *> &&items)
	{
		{
			std::lock_guard<std::mutex> lock(mutex_);
			arriving_.insert(arriving_.end(), items.begin(), items.end());
		}
		wake();
	}

	/* Looks for cancelled requests. */
	void cancel()
	{
		has_cancelled_ = true;
		wake();
	}

private:
	void wake()
	{
		uint64_t one = 1;

		/* If it is full, the thread is woken anyway. */
		(void)!write(wake_, &one, sizeof one);
	}

	void run()
	{
		pollfd descriptors[] = {{wake_, POLLIN, 0}, {lane_descriptor_, POLLIN, 0}};

		while (!is_ending_) {
			if (is_broken_)
				descriptors[1].fd = -1;
			bool has_cancelled = has_cancelled_.exchange(false);
			take_arriving();
			if (has_cancelled)
				cancel_requests();
			submit();
			while (take_completions())
				submit();
			if (poll(descriptors, 2, -1) > 0 && descriptors[0].revents) {
				uint64_t count;
				(void)!read(wake_, &count, sizeof count);
			}
		}
		/* On return from this the memory of all commands is the caller's again. */
		lane_.reset();
		take_arriving();
		for (item *one : slots_)
			if (one)
				ends_.of(one, NIXL_ERR_CANCELED);
		for (item *one : waiting_)
			ends_.of(one, NIXL_ERR_CANCELED);
	}

	void take_arriving()
	{
		std::lock_guard<std::mutex> lock(mutex_);

		waiting_.insert(waiting_.end(), arriving_.begin(), arriving_.end());
		arriving_.clear();
	}

	void cancel_requests()
	{
		for (size_t slot = 0; slot < slots_.size(); slot++)
			if (slots_[slot] && slots_[slot]->of->is_cancelled)
				nvlane_lane_cancel(lane_.get(), slot);
		std::erase_if(waiting_, [this](item *one) {
			if (!one->of->is_cancelled)
				return false;
			ends_.of(one, NIXL_ERR_CANCELED);
			return true;
		});
	}

	/* Submits what waits, as far as the lane has room. */
	void submit()
	{
		bool is_new = false;

		while (!waiting_.empty() && !free_.empty()) {
			item *next = waiting_.front();
			nvlane_lane *lane = lane_.get();
			size_t slot = free_.back();
			int code = NVLANE_ERROR_CANCELLED;

			if (!next->of->is_cancelled)
				code = next->of->is_write ? nvlane_lane_set(lane, bytes(next->key), next->key.size(), next->memory,
				                                            next->length, 0, slot)
				                          : nvlane_lane_get(lane, bytes(next->key), next->key.size(), next->memory,
				                                            next->length, slot);
			if (code == NVLANE_ERROR_FULL && nvlane_lane_outstanding(lane) > 0)
				break;
			waiting_.pop_front();
			if (code == NVLANE_OK) {
				free_.pop_back();
				slots_[slot] = next;
				is_new = true;
				continue;
			}
			if (code != NVLANE_ERROR_CANCELLED && next->of->status == NIXL_SUCCESS)
				report("%s: %s", next->of->is_write ? "store" : "retrieve", nvlane_error_message());
			ends_.of(next, status_of(code));
		}
		if (is_new)
			nvlane_lane_ring(lane_.get());
	}

	/* Takes what has completed. Returns whether that was anything. */
	bool take_completions()
	{
		nvlane_completion completions[64];
		int count = nvlane_lane_poll(lane_.get(), completions, 64);

		for (int i = 0; i < count; i++) {
			size_t slot = completions[i].user;
			end(slot, outcome(*slots_[slot], completions[i]));
		}
		if (count < 0 && !is_broken_) {
			/* A bug of the library: such a lane does nothing any more. */
			report("lane: %s", nvlane_error_message());
			is_broken_ = true;
			for (size_t slot = 0; slot < slots_.size(); slot++)
				if (slots_[slot])
					end(slot, NIXL_ERR_BACKEND);
		}
		return count > 0;
	}

	void end(size_t slot, nixl_status_t status)
	{
		ends_.of(slots_[slot], status);
		slots_[slot] = nullptr;
		free_.push_back(slot);
	}

	static nixl_status_t outcome(const item &one, const nvlane_completion &completion)
	{
		if (completion.error == NVLANE_OK)
			return one.of->is_write || completion.result == one.length ? NIXL_SUCCESS : NIXL_ERR_MISMATCH;
		nixl_status_t status = status_of(completion.error);
		/* The first failure of a request says enough. */
		if (status == NIXL_ERR_BACKEND && one.of->status == NIXL_SUCCESS) {
			char text[128];
			nvlane_completion_text(&completion, text, sizeof text);
			report("%s: %s", one.of->is_write ? "store" : "retrieve", text);
		}
		return status;
	}

	ends &ends_;
	handle<nvlane_lane> lane_;
	int lane_descriptor_ = -1;
	int wake_ = -1;
	std::atomic<bool> is_ending_{false};
	std::atomic<bool> has_cancelled_{false};
	std::mutex mutex_;
	std::vector<item *> arriving_;
	/* Of the thread alone: */
	bool is_broken_ = false;
	std::deque<item *> waiting_;
	std::vector<item *> slots_;
	std::vector<size_t> free_;
	std::thread thread_;
};

class engine : public nixlBackendEngine {
public:
	explicit engine(const nixlBackendInitParams *parameters) : nixlBackendEngine(parameters)
	{
		handle<nvlane_options> options(nvlane_options_new());
		std::string address;
		unsigned long lane_count = 4, nsid = 0;
		nvlane_target *target = nullptr;
		nvlane_key_value *keys = nullptr;
		nvlane_batch *batch = nullptr;

		/* A lost target costs misses, within a second, and is tried again for the longest time that there is. */
		check(nvlane_options_set(options.get(), "fast-fail", "1"), "options");
		check(nvlane_options_set(options.get(), "give-up", "86400"), "options");
		for (const auto &[name, value] : *parameters->customParams) {
			if (name == "address")
				address = value;
			else if (name == "nsid")
				nsid = number(name, value, 0, 0xfffffffe);
			else if (name == "lanes")
				lane_count = number(name, value, 1, 64);
			else
				check(nvlane_options_set(options.get(), name.c_str(), value.c_str()), "parameters");
		}
		if (address.empty())
			throw std::runtime_error("parameter address is missing: HOST[:PORT]/NQN[?ns=NSID] of a key-value namespace");
		/* One more for questions, and one for their batches. */
		check(nvlane_options_set(options.get(), "lanes", std::to_string(lane_count + 2).c_str()), "lanes");
		check(nvlane_open(address.c_str(), options.get(), &target), "connect");
		target_.reset(target);
		check(nvlane_key_value_open(target, nsid, &keys), "namespace");
		keys_.reset(keys);
		nvlane_namespace namespace_;
		check(nvlane_key_value_namespace(keys, &namespace_), "namespace");
		int made = nvlane_batch_new(keys, &batch);
		if (made != NVLANE_ERROR_UNSUPPORTED)
			check(made, "batch");
		batch_.reset(batch);
		if (batch) {
			/* The first batch opens a lane, which would wait for a target that is away. */
			check(nvlane_batch_exists(batch, bytes("0"), 1), "batch");
			check(nvlane_batch_run(keys, batch), "exist");
		}
		for (unsigned long i = 0; i < lane_count; i++)
			workers_.push_back(std::make_unique<worker>(target, namespace_.nsid, ends_));
	}

	bool supportsRemote() const override { return false; }
	bool supportsLocal() const override { return true; }
	bool supportsNotif() const override { return false; }
	nixl_mem_list_t getSupportedMems() const override { return {DRAM_SEG, OBJ_SEG}; }
	nixl_status_t connect(const std::string &) override { return NIXL_SUCCESS; }
	nixl_status_t disconnect(const std::string &) override { return NIXL_SUCCESS; }
	nixl_status_t unloadMD(nixlBackendMD *) override { return NIXL_SUCCESS; }

	nixl_status_t loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output) override
	{
		output = input;
		return NIXL_SUCCESS;
	}

	nixl_status_t registerMem(const nixlBlobDesc &memory, const nixl_mem_t &type, nixlBackendMD *&out) override
	{
		out = nullptr;
		if (type == DRAM_SEG)
			return NIXL_SUCCESS;
		if (type != OBJ_SEG)
			return NIXL_ERR_NOT_SUPPORTED;
		std::string key = key_of(memory);
		if (key.size() > key_bytes_max) {
			report("a key has 1 to %zu bytes, not %zu", key_bytes_max, key.size());
			return NIXL_ERR_INVALID_PARAM;
		}
		out = new object(std::move(key));
		return NIXL_SUCCESS;
	}

	nixl_status_t deregisterMem(nixlBackendMD *meta) override
	{
		delete meta;
		return NIXL_SUCCESS;
	}

	/* Of a key that exists: the length of its value, where the target is of nvlane. */
	nixl_status_t queryMem(const nixl_reg_dlist_t &descriptors, std::vector<nixl_query_resp_t> &answers) const override
	{
		std::lock_guard<std::mutex> lock(questions_);
		int count = descriptors.descCount();

		answers.assign(count, std::nullopt);
		for (int start = 0; start < count; start += batch_count_max) {
			int end = std::min(count, start + batch_count_max);
			int code = query(descriptors, start, end, answers);
			/* The lane of questions connects again during calls only: the first ones after a loss find it lost. */
			for (int i = 0; i < 50 && is_lost(code) && nvlane_is_connected(target_.get()) == 1; i++) {
				std::this_thread::sleep_for(std::chrono::milliseconds(20));
				code = query(descriptors, start, end, answers);
			}
			if (code < 0) {
				report("exist: %s", nvlane_error_message());
				answers.assign(count, std::nullopt);
				return status_of(code);
			}
		}
		return NIXL_SUCCESS;
	}

	nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
	                       const std::string &, nixlBackendReqH *&out, const nixl_opt_b_args_t *) const override
	{
		if (local.getType() != DRAM_SEG || remote.getType() != OBJ_SEG || local.descCount() != remote.descCount()) {
			report("a transfer is between DRAM_SEG, local, and as many OBJ_SEG");
			return NIXL_ERR_INVALID_PARAM;
		}
		auto made = std::make_unique<request>();
		made->is_write = operation == NIXL_WRITE;
		for (int i = 0; i < local.descCount(); i++) {
			const auto *of = static_cast<const object *>(remote[i].metadataP);
			if (!of) {
				report("object %d is not registered", i);
				return NIXL_ERR_NOT_FOUND;
			}
			if (remote[i].addr != 0) {
				report("object %d: offset %zu; values are moved as a whole", i, size_t(remote[i].addr));
				return NIXL_ERR_NOT_SUPPORTED;
			}
			if (local[i].len == 0 || local[i].len != remote[i].len) {
				report("object %d: %zu bytes of memory for %zu of the value", i, local[i].len, remote[i].len);
				return NIXL_ERR_INVALID_PARAM;
			}
			made->items.push_back({made.get(), of->key, reinterpret_cast<uint8_t *>(local[i].addr), local[i].len});
		}
		out = made.release();
		return NIXL_SUCCESS;
	}

	/* The descriptors are those of prepXfer. */
	nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
	                       nixlBackendReqH *&of, const nixl_opt_b_args_t *) const override
	{
		auto *whole = static_cast<request *>(of);
		std::vector<std::vector<item *>> shares(workers_.size());

		if (!whole)
			return NIXL_ERR_INVALID_PARAM;
		if (whole->left > 0)
			return NIXL_ERR_REPOST_ACTIVE;
		if (whole->items.empty())
			return NIXL_SUCCESS;
		whole->status = NIXL_SUCCESS;
		whole->left = whole->items.size();
		for (item &one : whole->items)
			shares[next_worker_++ % workers_.size()].push_back(&one);
		for (size_t i = 0; i < shares.size(); i++)
			if (!shares[i].empty())
				workers_[i]->add(std::move(shares[i]));
		return NIXL_IN_PROG;
	}

	nixl_status_t checkXfer(nixlBackendReqH *of) const override
	{
		const auto *whole = static_cast<const request *>(of);

		if (!whole)
			return NIXL_ERR_INVALID_PARAM;
		return whole->left > 0 ? NIXL_IN_PROG : whole->status.load();
	}

	/* The memory is the caller's again on return: what is outstanding is cancelled first. */
	nixl_status_t releaseReqH(nixlBackendReqH *of) const override
	{
		auto *whole = static_cast<request *>(of);

		if (!whole)
			return NIXL_ERR_INVALID_PARAM;
		if (whole->left > 0) {
			whole->is_cancelled = true;
			for (const auto &one : workers_)
				one->cancel();
		}
		/* Also for the thread that tells the end of a request which has none left. */
		ends_.wait(whole);
		delete whole;
		return NIXL_SUCCESS;
	}

private:
	static unsigned long number(const std::string &name, const std::string &value, unsigned long least, unsigned long most)
	{
		size_t end = 0;
		unsigned long number = most;

		try {
			number = std::stoul(value, &end);
		} catch (const std::logic_error &) {
		}
		if (value.empty() || end != value.size() || number < least || number > most)
			throw std::runtime_error("parameter " + name + ": write a number from " + std::to_string(least) + " to " +
			                         std::to_string(most));
		return number;
	}

	static bool is_lost(int code)
	{
		return code == NVLANE_ERROR_UNREACHABLE || code == NVLANE_ERROR_INTERRUPTED;
	}

	int query(const nixl_reg_dlist_t &descriptors, int start, int end, std::vector<nixl_query_resp_t> &answers) const
	{
		return batch_ ? query_batch(descriptors, start, end, answers) : query_each(descriptors, start, end, answers);
	}

	int query_batch(const nixl_reg_dlist_t &descriptors, int start, int end, std::vector<nixl_query_resp_t> &answers) const
	{
		nvlane_batch_clear(batch_.get());
		for (int i = start; i < end; i++) {
			std::string key = key_of(descriptors[i]);
			int code = nvlane_batch_exists(batch_.get(), bytes(key), key.size());
			if (code < 0)
				return code;
		}
		int count = nvlane_batch_run(keys_.get(), batch_.get());
		for (int i = 0; i < count; i++) {
			nvlane_outcome outcome;
			int code = nvlane_batch_outcome(batch_.get(), i, &outcome);
			if (code == NVLANE_OK && outcome.error != NVLANE_ERROR_NO_KEY)
				code = outcome.error;
			if (code < 0)
				return code;
			if (outcome.error == NVLANE_OK)
				answers[start + i] = nixl_b_params_t{{"length", std::to_string(outcome.result)}};
		}
		return count;
	}

	/* Targets without batches. */
	int query_each(const nixl_reg_dlist_t &descriptors, int start, int end, std::vector<nixl_query_resp_t> &answers) const
	{
		for (int i = start; i < end; i++) {
			std::string key = key_of(descriptors[i]);
			int found = nvlane_exists(keys_.get(), bytes(key), key.size());
			if (found < 0)
				return found;
			if (found)
				answers[i] = nixl_b_params_t{};
		}
		return 0;
	}

	mutable ends ends_;
	/* Held while keys_ and batch_ are used. */
	mutable std::mutex questions_;
	mutable std::atomic<size_t> next_worker_{0};
	handle<nvlane_target> target_;
	handle<nvlane_key_value> keys_;
	handle<nvlane_batch> batch_;
	std::vector<std::unique_ptr<worker>> workers_;
};

nixlBackendEngine *create(const nixlBackendInitParams *parameters)
{
	try {
		return new engine(parameters);
	} catch (const std::exception &error) {
		report("%s", error.what());
		return nullptr;
	}
}

/* Not by NIXL's template for it, which would need Abseil's libraries. */
nixlBackendPlugin plugin = {
	NIXL_PLUGIN_API_VERSION,
	create,
	[](nixlBackendEngine *one) { delete one; },
	[] { return "NVLANE"; },
	nvlane_version,
	[] { return nixl_b_params_t{{"address", ""}, {"nsid", "0"}, {"lanes", "4"}, {"fast-fail", "1"}, {"give-up", "86400"}}; },
	[] { return nixl_mem_list_t{DRAM_SEG, OBJ_SEG}; },
};

} // namespace

extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin *nixl_plugin_init()
{
	return &plugin;
}

extern "C" NIXL_PLUGIN_EXPORT void nixl_plugin_fini() {}
