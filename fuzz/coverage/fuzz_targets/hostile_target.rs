//! `feedrail_fuzz::hostile_target` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::hostile_target::run(data));
