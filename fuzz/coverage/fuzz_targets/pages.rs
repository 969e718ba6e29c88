//! `feedrail_fuzz::pages` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::pages::run(data));
