//! Responses as Python's hmac computes them from the formulas of Base 8.3.4.5.

use feedrail_auth::{HashFunction, ResponseInput, SharedSecret};
use nvme_proto::auth::{AuthTransaction, ConcatenatedChannel};

use crate::driver::{controller_key, host_key, parties};

/// Hash function, whether there is a shared secret, R1 and R2.
const RESPONSES: [(HashFunction, bool, &str, &str); 6] = [
    (
        HashFunction::Sha256,
        false,
        "3448ca7060fe78355f21bb32ec7f43c7c3a25fc94bc6fef53f9fee498d8649e1",
        "379dece1147afa1924df67b2f085fdb9b61a8acb5a7d6dadac5accc8ec195e68",
    ),
    (
        HashFunction::Sha256,
        true,
        "9ca83cfdddf04357308dbe6486fcab9d720a0a08788bacc61fc0acdba7a3f0df",
        "05e75d7aa24894fce2636134153aaecc125ae18433ad6b15c0dc30550a6c1f79",
    ),
    (
        HashFunction::Sha384,
        false,
        "52e0279866a6787f3d20a5f645c78a170c1ea2bdbcb7552110b44ad68d779b4675debb7270118f3c6755907f\
         bfdb16d4",
        "5a8d4d90db7ae702d1abd6de383f6cf56b99e737fc6c7f64e1564aa58f9f340ecc4cdac0ddbc049875a04fe3\
         ebcaec7f",
    ),
    (
        HashFunction::Sha384,
        true,
        "e912b73dcb91c7d4957e747434845e8b27c002b675fdc58efdffffc8afd141dbadef38b22da2fa6391091d26\
         f59c5d94",
        "98934760b81e88462b6a0f158ea2a0b9fde5723c44942f080f31acbe14ea2eb9654f49e45f470be63f925e78\
         5334eafd",
    ),
    (
        HashFunction::Sha512,
        false,
        "add87bd5e40dc3be523835c65fdd3f783bbc7872b4180957474e7cb41bff7b868669af8a26e6399f2554fb70\
         ee183d3f1ca349e5be6322637cef8d74c275e40d",
        "1fed7ca8c8ff8c6337d6f4551f02296cee23e148f25e8095b6c580d5de877cee4517a5f4cf5f5b89be246e32\
         d9e22eb3471dac3f21008aec95526f4619b49c4e",
    ),
    (
        HashFunction::Sha512,
        true,
        "56129c6623c18800bbc4ce318e4b4fef33d67109aae9a44f362bc316554711fbd5da42c3793e4d91a3565786\
         4eff4f130fc91233df386e0326aa16bd544d2d0a",
        "e33f5f702ad50fb1119df280b63c10d3fd523451f1721b655d677ea847f4ce50613bfe2e5aaeeea80b222b0a\
         07f6a21969e5e17828865d42de4fea988c923639",
    ),
];

#[test]
fn responses_are_those_of_python() {
    let shared = SharedSecret::from_bytes((0..=255).collect());
    for (hash, has_shared, host, controller) in RESPONSES {
        let challenge: Vec<u8> =
            (0..hash.output_bytes()).map(|number| (number * 7) as u8).collect();
        let input = ResponseInput {
            parties: &parties(),
            hash,
            transaction: AuthTransaction(0xABCD),
            concatenation: ConcatenatedChannel::NONE,
            sequence: 0x1234_5678,
            challenge: &challenge,
            shared: has_shared.then_some(&shared),
        };
        let hex =
            |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        assert_eq!(hex(&input.host_response(&host_key())), host, "{hash}");
        assert_eq!(hex(&input.controller_response(&controller_key())), controller, "{hash}");
    }
}
