//! `feedrail_fuzz::hostile_host` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::hostile_host::run(data));
