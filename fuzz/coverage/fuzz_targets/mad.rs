//! libFuzzer entry point of `feedrail_fuzz::mad`: management datagrams.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::mad::run(data));
