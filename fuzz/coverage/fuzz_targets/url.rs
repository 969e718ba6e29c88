//! libFuzzer entry point of `feedrail_fuzz::dataset::url`: URLs, names and hashes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::dataset::url::run(data));
