//! libFuzzer entry point of `feedrail_fuzz::hostile_target`: an initiator and a hostile target.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::hostile_target::run(data));
