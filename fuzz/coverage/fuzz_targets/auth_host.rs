//! libFuzzer entry point of `feedrail_fuzz::auth::host`: authentication of a host.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::auth::host::run(data));
