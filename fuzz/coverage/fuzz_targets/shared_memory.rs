//! libFuzzer entry point of `feedrail_fuzz::shared_memory`: peers that share memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::shared_memory::run(data));
