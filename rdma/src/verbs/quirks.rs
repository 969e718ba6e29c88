//! Optional features of a device, and vendors whose devices are known to have faulty ones.

use super::abi::*;

/// An optional feature that some devices lack, and some implement wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceFeature {
    SendWithInvalidate,
    MemoryWindows,
}

struct Quirk {
    vendor_id: u32,
    feature: DeviceFeature,
    reason: &'static str,
}

/// The vendor id that the kernel's `rdma_rxe` reports.
pub const RXE_VENDOR_ID: u32 = 0xff_ffff;

const QUIRKS: [Quirk; 2] = [
    Quirk {
        // Broadcom's bnxt_re accepts the request and then fails the queue pair (SPDK issue 3926).
        vendor_id: 0x14e4,
        feature: DeviceFeature::SendWithInvalidate,
        reason: "the device offers it, but fails when it is used (a known fault of this vendor)",
    },
    Quirk {
        // Linux's rxe: seen on 6.12; the conformance suite asserts it.
        vendor_id: RXE_VENDOR_ID,
        feature: DeviceFeature::MemoryWindows,
        reason: "the device offers them, but a peer reaches the whole region through one (a known fault of rxe)",
    },
];

/// The features that are not used on devices of a vendor, each with the reason.
pub fn known_faults(vendor_id: u32) -> impl Iterator<Item = (&'static str, &'static str)> {
    let quirks = QUIRKS.iter().filter(move |quirk| quirk.vendor_id == vendor_id);
    quirks.map(|quirk| (quirk.feature.name(), quirk.reason))
}

impl DeviceFeature {
    const fn name(self) -> &'static str {
        match self {
            Self::SendWithInvalidate => "SEND with Invalidate",
            Self::MemoryWindows => "memory windows",
        }
    }

    /// Whether the device's capability flags include the feature.
    pub(crate) fn is_offered(self, device_cap_flags: u32) -> bool {
        let flags = match self {
            Self::SendWithInvalidate => DEVICE_MEM_MGT_EXTENSIONS,
            Self::MemoryWindows => DEVICE_MEM_WINDOW_TYPE_2,
        };
        device_cap_flags & flags != 0
    }

    /// The reason why the feature must not be used; `None` if it may.
    pub(crate) fn obstacle(self, device_cap_flags: u32, vendor_id: u32) -> Option<&'static str> {
        if !self.is_offered(device_cap_flags) {
            return Some("the device does not offer it");
        }
        let mut quirks = QUIRKS.iter();
        let quirk = quirks.find(|quirk| quirk.vendor_id == vendor_id && quirk.feature == self);
        quirk.map(|quirk| quirk.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: u32 = DEVICE_MEM_MGT_EXTENSIONS | DEVICE_MEM_WINDOW_TYPE_2;

    #[test]
    fn a_feature_needs_its_flag() {
        for feature in [DeviceFeature::SendWithInvalidate, DeviceFeature::MemoryWindows] {
            assert_eq!(feature.obstacle(EVERYTHING, 0x15b3), None);
            let silent = feature.obstacle(0, 0x15b3).expect("not offered");
            assert!(silent.contains("does not offer"), "{silent}");
        }
        assert!(!DeviceFeature::MemoryWindows.is_offered(DEVICE_MEM_MGT_EXTENSIONS));
    }

    #[test]
    fn a_quirk_disables_only_the_broken_feature() {
        for (vendor_id, broken, whole) in [
            (0x14e4, DeviceFeature::SendWithInvalidate, DeviceFeature::MemoryWindows),
            (0xff_ffff, DeviceFeature::MemoryWindows, DeviceFeature::SendWithInvalidate),
        ] {
            let reason = broken.obstacle(EVERYTHING, vendor_id).expect("a quirk");
            assert!(reason.contains("known fault"), "{reason}");
            assert_eq!(whole.obstacle(EVERYTHING, vendor_id), None);
        }
    }
}
