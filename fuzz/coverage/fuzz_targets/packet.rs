//! `feedrail_fuzz::packet` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::packet::run(data));
