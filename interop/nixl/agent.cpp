/* Moves memory through NIXL's agent to a key-value namespace and back, by the plugin NVLANE.
 *
 *   agent ADDRESS                    what goes right, and what must be refused
 *   agent ADDRESS PROCESS COMMAND    kills the target's process under transfers, and starts another by COMMAND */
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <nixl.h>

using std::chrono::steady_clock;

#define CHECK(is_right)                                                                                                \
	do {                                                                                                           \
		if (!(is_right)) {                                                                                     \
			fprintf(stderr, "line %d: %s\n", __LINE__, #is_right);                                         \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static const char *const name = "nvlane-test";

struct Object {
	std::string key;
	std::vector<unsigned char> memory;
};

/* Bytes that depend on the key and the place. */
static void fill(Object &object, unsigned seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15u + std::hash<std::string>()(object.key);

	for (unsigned char &byte : object.memory) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		byte = state >> 56;
	}
}

/* An agent with the backend, and objects that are registered with it; each is as long as its memory. */
struct Registered {
	nixlAgent &agent;
	nixl_reg_dlist_t memory{DRAM_SEG}, keys{OBJ_SEG};

	Registered(nixlAgent &of, std::vector<Object> &objects, uint64_t first) : agent(of)
	{
		for (Object &object : objects) {
			memory.addDesc(nixlBlobDesc((uintptr_t)object.memory.data(), object.memory.size(), 0, ""));
			keys.addDesc(nixlBlobDesc(0, object.memory.size(), first++, object.key));
		}
		CHECK(agent.registerMem(memory) == NIXL_SUCCESS);
		CHECK(agent.registerMem(keys) == NIXL_SUCCESS);
	}

	~Registered()
	{
		CHECK(agent.deregisterMem(memory) == NIXL_SUCCESS);
		CHECK(agent.deregisterMem(keys) == NIXL_SUCCESS);
	}

	nixlXferReqH *request(nixl_xfer_op_t operation) const
	{
		nixlXferReqH *request = nullptr;

		CHECK(agent.createXferReq(operation, memory.trim(), keys.trim(), name, request) == NIXL_SUCCESS);
		return request;
	}

	/* Moves all, `times` times by the same request, and returns how it ended. */
	nixl_status_t move(nixl_xfer_op_t operation, int times = 1) const
	{
		nixlXferReqH *one = request(operation);
		nixl_status_t status = NIXL_SUCCESS;

		for (int i = 0; i < times && status == NIXL_SUCCESS; i++) {
			status = agent.postXferReq(one);
			status = end(one, status);
		}
		CHECK(agent.releaseXferReq(one) == NIXL_SUCCESS);
		return status;
	}

	nixl_status_t end(nixlXferReqH *one, nixl_status_t status) const
	{
		while (status == NIXL_IN_PROG) {
			std::this_thread::sleep_for(std::chrono::microseconds(50));
			status = agent.getXferStatus(one);
		}
		return status;
	}
};

static std::vector<Object> objects(const std::string &prefix, size_t count, size_t length)
{
	std::vector<Object> made;

	for (size_t i = 0; i < count; i++)
		made.push_back({prefix + std::to_string(i), std::vector<unsigned char>(length)});
	return made;
}

static size_t present(const nixlAgent &agent, nixlBackendH *backend, const nixl_reg_dlist_t &keys)
{
	nixl_opt_args_t arguments;
	std::vector<nixl_query_resp_t> answers;
	size_t count = 0;

	arguments.backends = {backend};
	CHECK(agent.queryMem(keys, answers, &arguments) == NIXL_SUCCESS);
	CHECK(answers.size() == (size_t)keys.descCount());
	for (int i = 0; i < keys.descCount(); i++)
		if (answers[i]) {
			CHECK(answers[i]->at("length") == std::to_string(keys[i].len));
			count++;
		}
	return count;
}

/* Writes, forgets and reads objects. */
static void there_and_back(nixlAgent &agent, nixlBackendH *backend, std::vector<Object> &all, uint64_t first)
{
	Registered registered(agent, all, first);

	CHECK(present(agent, backend, registered.keys) == 0);
	for (Object &object : all)
		fill(object, 1);
	auto start = steady_clock::now();
	CHECK(registered.move(NIXL_WRITE) == NIXL_SUCCESS);
	auto middle = steady_clock::now();
	CHECK(present(agent, backend, registered.keys) == all.size());
	std::vector<std::vector<unsigned char>> written;
	for (Object &object : all) {
		written.push_back(object.memory);
		memset(object.memory.data(), 0, object.memory.size());
	}
	auto again = steady_clock::now();
	CHECK(registered.move(NIXL_READ) == NIXL_SUCCESS);
	auto end = steady_clock::now();
	for (size_t i = 0; i < all.size(); i++)
		CHECK(all[i].memory == written[i]);
	/* The same request once more, and three times. */
	CHECK(registered.move(NIXL_READ, 3) == NIXL_SUCCESS);
	auto ms = [](auto time) { return std::chrono::duration<double, std::milli>(time).count(); };
	printf("%zu objects of %zu bytes: written in %.1f ms, read in %.1f ms\n", all.size(), all[0].memory.size(),
	       ms(middle - start), ms(end - again));
}

static void whole_values_only(nixlAgent &agent, const std::string &key)
{
	std::vector<Object> one{{key, std::vector<unsigned char>(5000, 7)}};
	{
		Registered registered(agent, one, 100000);
		CHECK(registered.move(NIXL_READ) == NIXL_ERR_NOT_FOUND);
		CHECK(registered.move(NIXL_WRITE) == NIXL_SUCCESS);
		nixl_xfer_dlist_t memory(DRAM_SEG), keys(OBJ_SEG);
		nixlXferReqH *request = nullptr;
		memory.addDesc(nixlBasicDesc((uintptr_t)one[0].memory.data(), 1000, 0));
		keys.addDesc(nixlBasicDesc(1000, 1000, 100000));
		CHECK(agent.createXferReq(NIXL_READ, memory, keys, name, request) == NIXL_ERR_NOT_SUPPORTED);
	}
	for (size_t length : {1, 4999, 5001, 100000}) {
		std::vector<Object> other{{key, std::vector<unsigned char>(length)}};
		Registered registered(agent, other, 100000);
		CHECK(registered.move(NIXL_READ) == NIXL_ERR_MISMATCH);
	}
	/* One of many is missing: the others are there all the same. */
	std::vector<Object> several{{key, std::vector<unsigned char>(5000)}, {key + "x", std::vector<unsigned char>(5000)}};
	Registered registered(agent, several, 100000);
	CHECK(registered.move(NIXL_READ) == NIXL_ERR_NOT_FOUND);
	CHECK(several[0].memory == one[0].memory);
}

/* Requests that are released while they are outstanding: on return the memory may go. */
static void released_under_way(nixlAgent &agent)
{
	for (int time = 0; time < 20; time++) {
		std::vector<Object> all = objects("released-", 8, 4 << 20);
		Registered registered(agent, all, 200000);
		nixlXferReqH *request = registered.request(NIXL_WRITE);
		CHECK(agent.postXferReq(request) == NIXL_IN_PROG);
		if (time % 2)
			std::this_thread::sleep_for(std::chrono::microseconds(200 * time));
		CHECK(agent.releaseXferReq(request) == NIXL_SUCCESS);
	}
}

/* Descriptors in lists that are prepared once, of which requests take some. */
static void prepared(nixlAgent &agent)
{
	std::vector<Object> all = objects("prepared-key-of-more-than-16-", 64, 4096);
	Registered registered(agent, all, 300000);
	nixlDlistH *memory = nullptr, *keys = nullptr;
	std::vector<int> odd;

	for (Object &object : all)
		fill(object, 3);
	CHECK(agent.prepXferDlist(NIXL_INIT_AGENT, registered.memory.trim(), memory) == NIXL_SUCCESS);
	CHECK(agent.prepXferDlist(name, registered.keys.trim(), keys) == NIXL_SUCCESS);
	for (int i = 1; i < 64; i += 2)
		odd.push_back(i);
	for (nixl_xfer_op_t operation : {NIXL_WRITE, NIXL_READ}) {
		nixlXferReqH *request = nullptr;
		CHECK(agent.makeXferReq(operation, memory, odd, keys, odd, request) == NIXL_SUCCESS);
		CHECK(registered.end(request, agent.postXferReq(request)) == NIXL_SUCCESS);
		CHECK(agent.releaseXferReq(request) == NIXL_SUCCESS);
	}
	CHECK(agent.releasedDlistH(memory) == NIXL_SUCCESS && agent.releasedDlistH(keys) == NIXL_SUCCESS);
}

static nixlBackendH *backend_of(nixlAgent &agent, const nixl_b_params_t &parameters)
{
	nixlBackendH *backend = nullptr;

	CHECK(agent.createBackend("NVLANE", parameters, backend) == NIXL_SUCCESS && backend);
	return backend;
}

static void right_and_wrong(const std::string &address)
{
	{
		nixlAgent agent(name, nixlAgentConfig());
		std::vector<nixl_backend_t> plugins;
		nixl_mem_list_t kinds;
		nixl_b_params_t parameters;
		CHECK(agent.getAvailPlugins(plugins) == NIXL_SUCCESS);
		CHECK(std::find(plugins.begin(), plugins.end(), "NVLANE") != plugins.end());
		CHECK(agent.getPluginParams("NVLANE", kinds, parameters) == NIXL_SUCCESS);
		CHECK(kinds.size() == 2 && parameters.count("address"));
		nixlBackendH *backend = nullptr;
		for (const nixl_b_params_t &wrong : std::vector<nixl_b_params_t>{
			     parameters,
			     {{"address", address}, {"adress", address}},
			     {{"address", address}, {"lanes", "many"}},
			     {{"address", address}, {"nsid", "77"}},
			     {{"address", "127.0.0.1:1/nqn.2016-06.io.nvlane:c"}},
		     })
			CHECK(agent.createBackend("NVLANE", wrong, backend) < 0);
	}
	nixlAgent agent(name, nixlAgentConfig());
	nixlBackendH *backend = backend_of(agent, {{"address", address}, {"lanes", "2"}});
	const std::string hashed = "model@00000001@0@b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9@";
	std::vector<Object> all = objects("key-", 1, 80 << 20);
	there_and_back(agent, backend, all, 0);
	all = objects(hashed, 8, 10 << 20);
	there_and_back(agent, backend, all, 10);
	/* More than fit in a question, and in the depth of all lanes. */
	all = objects("small-", 5000, 512);
	there_and_back(agent, backend, all, 1000);
	all = objects(hashed + "small-", 5000, 512);
	there_and_back(agent, backend, all, 10000);
	whole_values_only(agent, "whole");
	whole_values_only(agent, hashed + "whole");
	released_under_way(agent);
	prepared(agent);
	nixl_reg_dlist_t keys(OBJ_SEG);
	keys.addDesc(nixlBlobDesc(0, 1, 1, std::string(251, 'k')));
	CHECK(agent.registerMem(keys) < 0);
}

static void killed(const std::string &address, pid_t process, const char *command)
{
	nixlAgent agent(name, nixlAgentConfig());
	nixlBackendH *backend = backend_of(agent, {{"address", address}, {"lanes", "2"}});
	std::vector<Object> all = objects("a-key-of-more-than-16-bytes-", 32, 4 << 20);
	Registered registered(agent, all, 0);
	nixl_opt_args_t arguments;
	std::vector<nixl_query_resp_t> answers;

	arguments.backends = {backend};
	CHECK(registered.move(NIXL_WRITE) == NIXL_SUCCESS);
	nixlXferReqH *requests[] = {registered.request(NIXL_READ), registered.request(NIXL_READ)};
	for (nixlXferReqH *request : requests)
		CHECK(agent.postXferReq(request) == NIXL_IN_PROG);
	CHECK(kill(process, SIGKILL) == 0);
	auto start = steady_clock::now();
	for (nixlXferReqH *request : requests) {
		nixl_status_t status = registered.end(request, NIXL_IN_PROG);
		CHECK(status == NIXL_ERR_BACKEND || status == NIXL_SUCCESS);
		CHECK(agent.releaseXferReq(request) == NIXL_SUCCESS);
	}
	CHECK(registered.move(NIXL_WRITE) == NIXL_ERR_BACKEND);
	CHECK(agent.queryMem(registered.keys, answers, &arguments) == NIXL_ERR_BACKEND);
	double seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
	printf("killed: transfers and questions ended after %.1f s\n", seconds);
	/* Another target at the address. */
	CHECK(system(command) == 0);
	for (start = steady_clock::now(); registered.move(NIXL_WRITE) != NIXL_SUCCESS;) {
		CHECK(steady_clock::now() - start < std::chrono::seconds(60));
		std::this_thread::sleep_for(std::chrono::milliseconds(100));
	}
	CHECK(registered.move(NIXL_READ) == NIXL_SUCCESS);
	CHECK(present(agent, backend, registered.keys) == all.size());
}

int main(int argc, char **argv)
{
	if (argc == 2)
		right_and_wrong(argv[1]);
	else if (argc == 4)
		killed(argv[1], atoi(argv[2]), argv[3]);
	else
		return 2;
	puts("ok");
	return 0;
}
