//! `feedrail_fuzz::mad` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::mad::run(data));
