//! libFuzzer entry point of `feedrail_fuzz::checkpoint`: checkpoint volumes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::checkpoint::run(data));
