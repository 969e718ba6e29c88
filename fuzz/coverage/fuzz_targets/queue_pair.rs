//! `feedrail_fuzz::queue_pair` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::queue_pair::run(data));
