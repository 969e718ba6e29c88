//! Random seeds for runs without a `--seed` or `--randseed` option.

/// Seed from the kernel (getrandom), or the process id if that fails.
pub(crate) fn fresh_seed() -> u64 {
    let mut seed = [0; 8];
    match rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(seed),
        _ => u64::from(std::process::id()),
    }
}
