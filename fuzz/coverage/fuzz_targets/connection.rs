//! `feedrail_fuzz::connection` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::connection::run(data));
