//! libFuzzer entry point of `feedrail_fuzz::dataset::shard`: shards in the formats of training
//! data.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| feedrail_fuzz::dataset::shard::run(data));
