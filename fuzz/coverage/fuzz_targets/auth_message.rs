//! libFuzzer entry point of `feedrail_fuzz::auth::message`: messages of in-band authentication.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::auth::message::run(data));
