//! libFuzzer entry point of `feedrail_fuzz::hostile_host`: a target and a hostile host.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::hostile_host::run(data));
