// Stores and retrieves values, one by one, in a batch, and many at once, from C++.
//
//   c++ -std=c++17 key_value.cpp $(pkg-config --cflags --libs nvlane) -o key_value
//   ./key_value "127.0.0.1:4420/nqn.2016-06.io.nvlane:cache?ns=2"
#include <nvlane.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

int checked(int code)
{
	if (code < 0)
		throw std::runtime_error(nvlane_error_message());
	return code;
}

const std::uint8_t *bytes(const std::string &text)
{
	return reinterpret_cast<const std::uint8_t *>(text.data());
}

struct Closer {
	void operator()(nvlane_target *target) const { nvlane_close(target); }
	void operator()(nvlane_key_value *handle) const { nvlane_key_value_close(handle); }
	void operator()(nvlane_batch *batch) const { nvlane_batch_free(batch); }
	void operator()(nvlane_lane *lane) const { nvlane_lane_close(lane); }
};

// Takes the completions of `count` commands; `wanted` is the error that each of them has.
void take(nvlane_lane *lane, int count, int wanted, std::uint64_t result)
{
	nvlane_completion completions[8];
	while (count > 0) {
		const int taken = checked(nvlane_lane_wait(lane, completions, 8, 30000));
		if (taken == 0 || taken > count)
			throw std::runtime_error("completions are missing, or too many");
		for (int i = 0; i < taken; i++) {
			const nvlane_completion &ended = completions[i];
			if (ended.error != wanted || ended.result != result || ended.user != 7)
				throw std::runtime_error("a command on a lane ended with " + std::to_string(ended.error));
		}
		count -= taken;
	}
	if (nvlane_lane_outstanding(lane) != 0)
		throw std::runtime_error("commands are outstanding");
}

// Values of long keys on a lane, all outstanding at the same time.
void many(nvlane_target *target)
{
	nvlane_lane *opened = nullptr;
	checked(nvlane_lane_open(target, 0, &opened));
	const std::unique_ptr<nvlane_lane, Closer> owner(opened);
	nvlane_lane *const lane = owner.get();
	const int count = 4;
	const std::size_t length = 1000000;
	std::vector<std::string> names;
	std::vector<std::vector<std::uint8_t>> values, rooms(count, std::vector<std::uint8_t>(length));
	for (int i = 0; i < count; i++) {
		names.push_back("model@0@" + std::string(i == 0 ? 5 : 200, 'k') + std::to_string(i));
		values.emplace_back(length, static_cast<std::uint8_t>(i + 1));
	}
	const auto each = [&](const auto &submit) {
		for (int i = 0; i < count; i++)
			checked(submit(bytes(names[i]), names[i].size(), i));
		checked(nvlane_lane_ring(lane));
		if (nvlane_lane_outstanding(lane) != static_cast<unsigned>(count))
			throw std::runtime_error("commands are counted twice");
	};
	each([&](auto *key, auto size, int i) { return nvlane_lane_get(lane, key, size, rooms[i].data(), length, 7); });
	take(lane, count, NVLANE_ERROR_NO_KEY, 0);
	each([&](auto *key, auto size, int i) { return nvlane_lane_set(lane, key, size, values[i].data(), length, 0, 7); });
	take(lane, count, NVLANE_OK, 0);
	each([&](auto *key, auto size, int i) {
		return nvlane_lane_set(lane, key, size, values[i].data(), 1, NVLANE_IF_ABSENT, 7);
	});
	take(lane, count, NVLANE_ERROR_KEY_EXISTS, 0);
	each([&](auto *key, auto size, int i) { return nvlane_lane_get(lane, key, size, rooms[i].data(), length, 7); });
	take(lane, count, NVLANE_OK, length);
	if (rooms != values)
		throw std::runtime_error("a value that a lane retrieved differs");
	checked(nvlane_lane_get(lane, bytes(names[1]), names[1].size(), rooms[1].data(), 10, 7));
	take(lane, 1, NVLANE_ERROR_TRUNCATED, 0);
	each([&](auto *key, auto size, int) { return nvlane_lane_exists(lane, key, size, 7); });
	take(lane, count, NVLANE_OK, 0);
	checked(nvlane_lane_set(lane, bytes(names[1]), names[1].size(), nullptr, 0, 0, 7));
	take(lane, 1, NVLANE_OK, 0);
	each([&](auto *key, auto size, int) { return nvlane_lane_delete(lane, key, size, 7); });
	take(lane, count, NVLANE_OK, 0);
	each([&](auto *key, auto size, int) { return nvlane_lane_exists(lane, key, size, 7); });
	take(lane, count, NVLANE_ERROR_NO_KEY, 0);
	if (nvlane_lane_exists(lane, values[0].data(), 251, 7) != NVLANE_ERROR_ARGUMENT)
		throw std::runtime_error("a lane took a key of 251 bytes");
	// What is outstanding when a lane is closed ends without a completion.
	checked(nvlane_lane_set(lane, bytes(names[1]), names[1].size(), values[1].data(), length, 0, 7));
	checked(nvlane_lane_ring(lane));
}

// Values that are longer than one command transfers if the subsystem has blocks, too: on a lane, and by calls that wait.
void longer(nvlane_target *target, nvlane_key_value *store)
{
	nvlane_lane *opened = nullptr;
	checked(nvlane_lane_open(target, 0, &opened));
	const std::unique_ptr<nvlane_lane, Closer> lane(opened);
	const std::size_t length = 5 * 1048576 + 3;
	std::vector<std::uint8_t> value(length), room(length);
	for (std::size_t i = 0; i < length; i++)
		value[i] = static_cast<std::uint8_t>(i * 7 + i / 65536);
	for (const std::string &name : {std::string("longer"), std::string(100, 'l')}) {
		std::size_t whole = 0;
		checked(nvlane_lane_set(lane.get(), bytes(name), name.size(), value.data(), length, 0, 7));
		take(lane.get(), 1, NVLANE_OK, 0);
		checked(nvlane_lane_get(lane.get(), bytes(name), name.size(), room.data(), length, 7));
		take(lane.get(), 1, NVLANE_OK, length);
		if (room != value)
			throw std::runtime_error("a long value that a lane retrieved differs");
		checked(nvlane_lane_set(lane.get(), bytes(name), name.size(), value.data(), length, NVLANE_IF_ABSENT, 7));
		take(lane.get(), 1, NVLANE_ERROR_KEY_EXISTS, 0);
		std::fill(room.begin(), room.end(), 0);
		if (nvlane_get(store, bytes(name), name.size(), room.data(), length - 1, &whole) != NVLANE_ERROR_TRUNCATED ||
		    whole != length)
			throw std::runtime_error("a part of a long value was taken for all of it");
		checked(nvlane_set(store, bytes(name), name.size(), value.data() + 1, length - 1, 0));
		checked(nvlane_get(store, bytes(name), name.size(), room.data(), length, &whole));
		if (whole != length - 1 || std::memcmp(room.data(), value.data() + 1, whole) != 0)
			throw std::runtime_error("a long value differs");
		checked(nvlane_delete(store, bytes(name), name.size()));
		checked(nvlane_lane_get(lane.get(), bytes(name), name.size(), room.data(), length, 7));
		take(lane.get(), 1, NVLANE_ERROR_NO_KEY, 0);
	}
}

void use(const char *address)
{
	nvlane_target *opened = nullptr;
	checked(nvlane_open(address, nullptr, &opened));
	std::unique_ptr<nvlane_target, Closer> target(opened);
	nvlane_key_value *handle = nullptr;
	checked(nvlane_key_value_open(target.get(), 0, &handle));
	std::unique_ptr<nvlane_key_value, Closer> store(handle);

	const std::string key = "greeting", value(300000, 'v');
	checked(nvlane_set(store.get(), bytes(key), key.size(), bytes(value), value.size(), 0));
	std::vector<std::uint8_t> room(value.size());
	std::size_t length = 0;
	checked(nvlane_get(store.get(), bytes(key), key.size(), room.data(), room.size(), &length));
	if (length != value.size() || std::memcmp(room.data(), value.data(), length) != 0)
		throw std::runtime_error("the value differs");
	if (nvlane_get(store.get(), bytes(key), key.size(), room.data(), 10, &length) != NVLANE_ERROR_TRUNCATED ||
	    length != value.size())
		throw std::runtime_error("a value that is too long was taken for a whole one");
	if (nvlane_set(store.get(), bytes(key), key.size(), bytes(value), 1, NVLANE_IF_ABSENT) !=
	    NVLANE_ERROR_KEY_EXISTS)
		throw std::runtime_error("a value was replaced");
	if (checked(nvlane_exists(store.get(), bytes(key), key.size())) != 1)
		throw std::runtime_error("the key is not there");

	// A target of nvlane has keys of up to 250 bytes.
	const std::string name = "model@00000001@0@" + std::string(64, 'f');
	checked(nvlane_set(store.get(), bytes(name), name.size(), bytes(value), value.size(), 0));
	std::fill(room.begin(), room.end(), 0);
	checked(nvlane_get(store.get(), bytes(name), name.size(), room.data(), room.size(), &length));
	if (length != value.size() || std::memcmp(room.data(), value.data(), length) != 0)
		throw std::runtime_error("the value of a long key differs");
	if (nvlane_get(store.get(), bytes(name), name.size(), room.data(), 10, &length) != NVLANE_ERROR_TRUNCATED ||
	    length != value.size())
		throw std::runtime_error("a value of a long key that is too long was taken for a whole one");
	if (nvlane_set(store.get(), bytes(name), name.size(), bytes(value), 1, NVLANE_IF_ABSENT) !=
	    NVLANE_ERROR_KEY_EXISTS)
		throw std::runtime_error("a value of a long key was replaced");
	checked(nvlane_set(store.get(), bytes(name), name.size(), bytes(value), 0, 0));
	checked(nvlane_get(store.get(), bytes(name), name.size(), room.data(), 1, &length));
	if (length != 0 || checked(nvlane_exists(store.get(), bytes(name), name.size())) != 1)
		throw std::runtime_error("an empty value is not there");
	checked(nvlane_delete(store.get(), bytes(name), name.size()));
	if (checked(nvlane_exists(store.get(), bytes(name), name.size())) != 0 ||
	    nvlane_get(store.get(), bytes(name), name.size(), room.data(), room.size(), nullptr) != NVLANE_ERROR_NO_KEY)
		throw std::runtime_error("a deleted long key is there");
	if (nvlane_get(store.get(), bytes(value), 251, room.data(), 1, nullptr) != NVLANE_ERROR_ARGUMENT)
		throw std::runtime_error("a key of 251 bytes was taken");

	many(target.get());
	longer(target.get(), store.get());

	nvlane_batch *made = nullptr;
	checked(nvlane_batch_new(store.get(), &made));
	std::unique_ptr<nvlane_batch, Closer> batch(made);
	for (int i = 0; i < 10; i++) {
		// Of up to 75 bytes.
		const std::string name = "key" + std::string(8 * i, '-') + std::to_string(i), text = "value" + std::to_string(i);
		checked(nvlane_batch_set(batch.get(), bytes(name), name.size(), bytes(text), text.size(), 0));
	}
	for (int i = 0; i < 11; i++) {
		const std::string name = "key" + std::string(8 * i, '-') + std::to_string(i);
		checked(nvlane_batch_get(batch.get(), bytes(name), name.size(), 64));
	}
	// Not evicted for a minute, or until the program is done with it: one pin, taken back.
	checked(nvlane_batch_pin(batch.get(), bytes(key), key.size(), 60));
	checked(nvlane_batch_pin(batch.get(), bytes(key), key.size(), 0));
	checked(nvlane_batch_pin(batch.get(), bytes(name), name.size(), 60));
	if (checked(nvlane_batch_run(store.get(), batch.get())) != 24)
		throw std::runtime_error("a batch has 24 outcomes");
	for (int i = 0; i < 3; i++) {
		nvlane_outcome outcome;
		checked(nvlane_batch_outcome(batch.get(), static_cast<std::size_t>(21 + i), &outcome));
		if (outcome.error != (i == 2 ? NVLANE_ERROR_NO_KEY : NVLANE_OK))
			throw std::runtime_error("a pin is wrong");
	}
	for (int i = 0; i < 11; i++) {
		nvlane_outcome outcome;
		checked(nvlane_batch_outcome(batch.get(), static_cast<std::size_t>(10 + i), &outcome));
		const std::string text = "value" + std::to_string(i);
		const bool is_right = i == 10 ? outcome.error == NVLANE_ERROR_NO_KEY
					      : outcome.error == NVLANE_OK && outcome.data_length == text.size() &&
							std::memcmp(outcome.data, text.data(), text.size()) == 0;
		if (!is_right)
			throw std::runtime_error("outcome " + std::to_string(i) + " is wrong");
	}
	checked(nvlane_delete(store.get(), bytes(key), key.size()));
	if (checked(nvlane_exists(store.get(), bytes(key), key.size())) != 0)
		throw std::runtime_error("a deleted key is there");
	std::cout << "keys and values: ok; " << nvlane_error_message() << "\n";
}

} // namespace

int main(int argc, char **argv)
{
	if (argc < 2) {
		std::cerr << "usage: key_value HOST[:PORT]/NQN[?ns=NSID]\n";
		return 2;
	}
	try {
		use(argv[1]);
	} catch (const std::exception &error) {
		std::cerr << error.what() << "\n";
		return 1;
	}
	return 0;
}
