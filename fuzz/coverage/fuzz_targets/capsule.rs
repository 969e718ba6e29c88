//! `feedrail_fuzz::capsule` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::capsule::run(data));
