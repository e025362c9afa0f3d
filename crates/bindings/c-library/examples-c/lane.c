/* Reads and writes at depth 64 on one lane, in a loop of the program's own that waits by poll(2): for a lane whose
 * completions arrive while the program does other things.
 *
 *   cc lane.c $(pkg-config --cflags --libs nvlane) -o lane
 *   ./lane 127.0.0.1:4420/nqn.2016-06.io.nvlane:disk 10000 */
#include <nvlane.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 64
#define BYTES 4096

static void check(int code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, nvlane_error_message());
	exit(1);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: lane HOST[:PORT]/NQN[?ns=NSID] COUNT\n");
		return 2;
	}
	unsigned long count = strtoul(argv[2], NULL, 10), submitted = 0, done = 0, wakes = 0;
	nvlane_target *target;
	nvlane_lane *lane;
	nvlane_namespace namespace;
	check(nvlane_open(argv[1], NULL, &target), "connect");
	check(nvlane_lane_open(target, 0, &lane), "lane");
	check(nvlane_lane_namespace(lane, &namespace), "namespace");
	unsigned long places = namespace.size_bytes / BYTES;
	int descriptor = nvlane_lane_descriptor(lane);
	check(descriptor, "descriptor");

	/* Each place of memory writes its number, and then reads it again. */
	static unsigned char memory[DEPTH][BYTES];
	unsigned long place[DEPTH], is_read[DEPTH], free_slots[DEPTH], free_count = DEPTH;
	for (unsigned long i = 0; i < DEPTH; i++)
		free_slots[i] = i;
	nvlane_completion completions[DEPTH];
	while (done < count) {
		int is_new = 0;
		while (free_count > 0 && submitted < count && nvlane_lane_outstanding(lane) < nvlane_lane_depth(lane)) {
			unsigned long slot = free_slots[--free_count];
			place[slot] = submitted++ % places;
			is_read[slot] = 0;
			memset(memory[slot], (int)(place[slot] % 251), BYTES);
			check(nvlane_lane_write(lane, memory[slot], BYTES, place[slot] * BYTES, 0, slot), "write");
			is_new = 1;
		}
		if (is_new)
			check(nvlane_lane_ring(lane), "ring");
		struct pollfd wait = {.fd = descriptor, .events = POLLIN};
		if (poll(&wait, 1, 10000) != 1) {
			fprintf(stderr, "nothing for 10 s: %u outstanding\n", nvlane_lane_outstanding(lane));
			return 1;
		}
		wakes++;
		int taken;
		/* Room for fewer than may have completed: the rest is taken next time. */
		while ((taken = nvlane_lane_poll(lane, completions, 24)) > 0) {
			for (int i = 0; i < taken; i++) {
				unsigned long slot = completions[i].user;
				if (completions[i].error) {
					char text[128];
					nvlane_completion_text(&completions[i], text, sizeof text);
					fprintf(stderr, "command at %lu: %s\n", place[slot], text);
					return 1;
				}
				if (!is_read[slot]) {
					is_read[slot] = 1;
					memset(memory[slot], 255, BYTES);
					check(nvlane_lane_read(lane, memory[slot], BYTES, place[slot] * BYTES, slot), "read");
					continue;
				}
				for (int at = 0; at < BYTES; at++)
					if (memory[slot][at] != place[slot] % 251) {
						fprintf(stderr, "byte %d at %lu is wrong\n", at, place[slot]);
						return 1;
					}
				free_slots[free_count++] = slot;
				done++;
			}
			check(nvlane_lane_ring(lane), "ring");
		}
		check(taken, "poll");
	}
	/* Nothing is to be done now, so the descriptor is quiet. */
	struct pollfd wait = {.fd = descriptor, .events = POLLIN};
	for (int i = 0; i < 20 && poll(&wait, 1, 50) != 0; i++)
		check(nvlane_lane_poll(lane, completions, DEPTH), "poll");
	if (poll(&wait, 1, 0) != 0) {
		fprintf(stderr, "the descriptor stays readable\n");
		return 1;
	}
	printf("%lu writes and reads, %lu wakes: ok\n", done, wakes);
	nvlane_lane_close(lane);
	nvlane_close(target);
	return 0;
}
