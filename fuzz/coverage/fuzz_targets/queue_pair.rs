//! libFuzzer entry point of `feedrail_fuzz::queue_pair`: two connected queue pairs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::queue_pair::run(data));
