/* Loses its target: every later call fails, none takes longer than the options say, and no signal ends the program.
 *
 * Arguments: the address, and the target's process. */
#include <nvlane.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is_right)                                                                                                \
	do {                                                                                                           \
		if (!(is_right)) {                                                                                     \
			fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #is_right, nvlane_error_message()); \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static uint8_t data[1 << 20];

/* Handles of the parent are refused, and closing them does not disturb it; own ones work. */
static void child(const char *address, nvlane_blocks *disk, nvlane_target *target)
{
	CHECK(nvlane_read(disk, data, 4096, 0) == NVLANE_ERROR_FORKED);
	nvlane_blocks_close(disk);
	nvlane_close(target);
	CHECK(nvlane_open(address, NULL, &target) == NVLANE_OK);
	CHECK(nvlane_blocks_open(target, 1, &disk) == NVLANE_OK);
	CHECK(nvlane_read(disk, data, 4096, 0) == NVLANE_OK);
	nvlane_blocks_close(disk);
	nvlane_close(target);
	exit(0);
}

/* A lane learns of the end of its association when it is polled: until then it accepts commands, which fail. */
static int write_on(nvlane_lane *lane)
{
	nvlane_completion completion;
	int code = nvlane_lane_write(lane, data, 4096, 0, 0, 7);

	if (code)
		return code;
	CHECK(nvlane_lane_wait(lane, &completion, 1, 10000) == 1);
	CHECK(completion.user == 7);
	return completion.error;
}

int main(int argc, char **argv)
{
	nvlane_options *options = nvlane_options_new();
	nvlane_target *target;
	nvlane_blocks *disk;
	nvlane_lane *lane;
	nvlane_key_value *keys;
	int status;

	CHECK(argc == 3);
	CHECK(nvlane_options_set(options, "give-up", "1") == NVLANE_OK);
	CHECK(nvlane_open(argv[1], options, &target) == NVLANE_OK);
	CHECK(nvlane_blocks_open(target, 1, &disk) == NVLANE_OK);
	CHECK(nvlane_lane_open(target, 1, &lane) == NVLANE_OK);
	CHECK(nvlane_key_value_open(target, 2, &keys) == NVLANE_OK);
	CHECK(nvlane_lane_descriptor(lane) >= 0);

	pid_t process = fork();
	if (!process)
		child(argv[1], disk, target);
	CHECK(waitpid(process, &status, 0) == process && status == 0);
	CHECK(nvlane_write(disk, data, sizeof data, 0, 0) == NVLANE_OK);

	CHECK(kill(atoi(argv[2]), SIGKILL) == 0);
	CHECK(nvlane_write(disk, data, sizeof data, 0, 0) < 0);
	CHECK(write_on(lane) < 0);
	/* Reconnecting is given up by now. */
	for (int i = 0; i < 3; i++) {
		CHECK(nvlane_write(disk, data, sizeof data, 0, 0) == NVLANE_ERROR_UNREACHABLE);
		CHECK(strstr(nvlane_error_message(), "could not reconnect"));
		CHECK(nvlane_read(disk, data, 4096, 0) == NVLANE_ERROR_UNREACHABLE);
		CHECK(nvlane_flush(disk) < 0);
		CHECK(nvlane_set(keys, data, 4, data, 4096, 0) == NVLANE_ERROR_UNREACHABLE);
		CHECK(nvlane_exists(keys, data, 4) == NVLANE_ERROR_UNREACHABLE);
		CHECK(write_on(lane) == NVLANE_ERROR_UNREACHABLE);
	}
	CHECK(nvlane_is_connected(target) == 0);
	nvlane_key_value_close(keys);
	nvlane_lane_close(lane);
	nvlane_blocks_close(disk);
	nvlane_close(target);
	nvlane_options_free(options);
	return 0;
}
