//! libFuzzer entry point of `feedrail_fuzz::dataset::index`: indexes of samples.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::dataset::index::run(data));
