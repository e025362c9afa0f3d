// Stores and retrieves values, one by one and in a batch, from C++.
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
};

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
	if (checked(nvlane_batch_run(store.get(), batch.get())) != 21)
		throw std::runtime_error("a batch has 21 outcomes");
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
