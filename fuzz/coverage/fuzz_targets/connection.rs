//! libFuzzer entry point of `feedrail_fuzz::connection`: two communication managers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::connection::run(data));
