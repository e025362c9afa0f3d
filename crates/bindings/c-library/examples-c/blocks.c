/* Writes a block, reads it again, and compares: blocking calls, a list of pieces, and what an error says.
 *
 *   cc blocks.c $(pkg-config --cflags --libs nvlane) -o blocks
 *   ./blocks 127.0.0.1:4420/nqn.2016-06.io.nvlane:disk */
#include <nvlane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "%s: %s (%s)\n", what, nvlane_error_message(), nvlane_error_text(code));
	exit(1);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: blocks HOST[:PORT]/NQN[?ns=NSID] [OPTION=VALUE]...\n");
		return 2;
	}
	nvlane_options *options = nvlane_options_new();
	for (int i = 2; i < argc; i++) {
		char *value = strchr(argv[i], '=');
		if (!value)
			return 2;
		*value++ = 0;
		check(nvlane_options_set(options, argv[i], value), "option");
	}
	nvlane_target *target;
	check(nvlane_open(argv[1], options, &target), "connect");
	nvlane_options_free(options);

	nvlane_blocks *disk;
	nvlane_namespace namespace;
	check(nvlane_blocks_open(target, 0, &disk), "open");
	nvlane_close(target); /* The handle keeps the association. */
	check(nvlane_blocks_namespace(disk, &namespace), "namespace");
	size_t block = namespace.block_bytes, length = 8 * block;

	unsigned char *data = malloc(length), *back = calloc(1, length);
	for (size_t i = 0; i < length; i++)
		data[i] = (unsigned char)(i * 7 + i / 251);
	check(nvlane_write(disk, data, length, 0, 0), "write");
	check(nvlane_flush(disk), "flush");
	struct iovec list[] = {{back, 3 * block - 5}, {back + 3 * block - 5, 5 * block + 5}};
	check(nvlane_readv(disk, list, 2, 0), "read");
	if (memcmp(data, back, length)) {
		fprintf(stderr, "the data differs\n");
		return 1;
	}
	check(nvlane_writev(disk, list, 2, 16 * block, NVLANE_FUA), "write at once durable");
	check(nvlane_write_zeroes(disk, 0, block, 0), "write zeroes");
	check(nvlane_discard(disk, 16 * block, length), "discard");
	check(nvlane_read(disk, back, block, 0), "read");
	for (size_t i = 0; i < block; i++)
		if (back[i]) {
			fprintf(stderr, "byte %zu is not zero\n", i);
			return 1;
		}
	/* A program that is wrong is told how. */
	if (nvlane_read(disk, back, block, namespace.size_bytes) != NVLANE_ERROR_ARGUMENT ||
	    nvlane_read(disk, back, 1, 0) != NVLANE_ERROR_ARGUMENT || nvlane_read(disk, NULL, block, 0) >= 0 ||
	    nvlane_read(NULL, back, block, 0) >= 0 || nvlane_write(disk, data, block, 0, 128) >= 0) {
		fprintf(stderr, "a wrong call was accepted\n");
		return 1;
	}
	printf("%llu blocks of %zu bytes: ok, libnvlane %s; %s\n",
	       (unsigned long long)(namespace.size_bytes / block), block, nvlane_version(), nvlane_error_message());
	nvlane_blocks_close(disk);
	free(data);
	free(back);
	return 0;
}
