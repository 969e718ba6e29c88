//! libFuzzer entry point of `feedrail_fuzz::packet`: RoCE v2 packets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::packet::run(data));
