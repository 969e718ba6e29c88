//! libFuzzer entry point of `feedrail_fuzz::capsule`: command capsules.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::capsule::run(data));
