//! A target on a simulated network, and hosts that do everything by hand.

mod addresses;
mod authentication;
mod commands;
mod connections;
mod device_events;
pub(super) mod host;
mod lifecycle;
mod limits;
mod names;
mod quotas;
mod range_lists;
mod recording;
mod world;

/// Bytes that differ everywhere and between seeds.
fn pattern(length: usize, seed: u32) -> Vec<u8> {
    let mix = |i: u32| (i ^ seed.wrapping_mul(0x9E37_79B9)).wrapping_mul(2_654_435_761) >> 13;
    (0..length as u32).map(|i| mix(i) as u8).collect()
}
