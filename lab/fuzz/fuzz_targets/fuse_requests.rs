#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nvlane_fuzz::fuse_requests(data));
