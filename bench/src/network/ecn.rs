//! Explicit Congestion Notification in IPv4 headers (RFC 3168).

/// Where an IPv4 header has DSCP and ECN.
const TRAFFIC_CLASS_AT: usize = 1;
const CHECKSUM_AT: usize = 10;
const ECN_MASK: u8 = 0b11;
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// Marks a packet that is ECN-capable. Returns whether it is.
pub(super) fn mark(packet: &mut [u8]) -> bool {
    let is_ipv4 = packet.len() >= 20 && packet[0] >> 4 == 4;
    if !is_ipv4 || packet[TRAFFIC_CLASS_AT] & ECN_MASK == 0 {
        return false;
    }
    let word = |packet: &[u8]| u16::from_be_bytes([packet[0], packet[TRAFFIC_CLASS_AT]]);
    let before = word(packet);
    packet[TRAFFIC_CLASS_AT] |= CONGESTION_EXPERIENCED;
    let checksum = u16::from_be_bytes([packet[CHECKSUM_AT], packet[CHECKSUM_AT + 1]]);
    let checksum = updated(checksum, before, word(packet));
    packet[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// A checksum after one word was replaced (RFC 1624, equation 3).
fn updated(checksum: u16, before: u16, after: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).expect("twice folded")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header whose checksum is right adds up to all ones.
    fn is_consistent(header: &[u8]) -> bool {
        let words = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum: u32 = words.sum();
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    fn header(traffic_class: u8) -> [u8; 20] {
        let mut header = [0; 20];
        header[0] = 0x45;
        header[1] = traffic_class;
        header[8..10].copy_from_slice(&[64, 17]);
        header[12..].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        let words = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum: u32 = words.sum();
        let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    #[test]
    fn a_capable_packet_is_marked() {
        for capable in [0b01, 0b10, 0b11, 26 << 2 | 0b10] {
            let mut packet = header(capable);
            assert!(is_consistent(&packet));
            assert!(mark(&mut packet));
            assert_eq!(packet[1], capable | 0b11);
            assert!(is_consistent(&packet));
        }
    }

    #[test]
    fn others_are_left_alone() {
        let mut packet = header(26 << 2);
        assert!(!mark(&mut packet));
        assert_eq!(packet, header(26 << 2));
        assert!(!mark(&mut [0x60; 40]));
        assert!(!mark(&mut [0x45; 3]));
    }
}
