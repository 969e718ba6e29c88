//! libFuzzer entry point of `feedrail_fuzz::pages`: Identify data and log pages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::pages::run(data));
