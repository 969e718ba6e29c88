//! libFuzzer entry point of `feedrail_fuzz::dataset::state`: states of loaders.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::dataset::state::run(data));
