//! libFuzzer entry point of `feedrail_fuzz::dataset::manifest`: manifests.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::dataset::manifest::run(data));
