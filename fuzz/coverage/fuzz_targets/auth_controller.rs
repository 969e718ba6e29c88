//! libFuzzer entry point of `feedrail_fuzz::auth::controller`: authentication at a controller.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::auth::controller::run(data));
