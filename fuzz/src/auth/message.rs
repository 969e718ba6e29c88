//! Messages of both sides.

use nvme_proto::auth::{AuthMessage, DhGroupId, HashId};

/// One message: what parses is encoded to a message that parses to the same, and its fields lie in
/// the bytes that it takes.
pub fn run(data: &[u8]) {
    let (message, length) = match AuthMessage::parse(data) {
        Ok(parsed) => parsed,
        Err(error) => {
            assert!(error.explanation().name().is_some() && !error.to_string().is_empty());
            return;
        }
    };
    assert!(length <= data.len());
    let again = super::encode(&message);
    // A response that is not valid may be missing.
    assert!(again.len() == length || matches!(message, AuthMessage::Success1(_)));
    assert_eq!(AuthMessage::parse(&again), Ok((message, length)));
    assert_eq!(AuthMessage::parse(&data[..length]), Ok((message, length)));
    assert!(message.encode(&mut vec![0; again.len() - 1]).is_none());
    let _ = format!("{message:?}");
    if let AuthMessage::Negotiate(negotiate) = message
        && let Some(offer) = negotiate.dh_hmac_chap()
    {
        let hashes: Option<Vec<HashId>> = offer.hashes().map(Iterator::collect);
        let groups: Option<Vec<DhGroupId>> = offer.groups().map(Iterator::collect);
        assert!(hashes.is_none_or(|list| (1..=30).contains(&list.len())));
        assert!(groups.is_none_or(|list| (1..=30).contains(&list.len())));
    }
}
