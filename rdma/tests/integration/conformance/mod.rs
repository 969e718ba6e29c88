//! The contract of every provider, run on the providers that need no hardware.
#![expect(unsafe_code, reason = "work requests name memory by address")]
#![expect(unreachable_pub, reason = "nothing of a test is reachable")]

mod acknowledgements;
pub(super) mod benches;
mod buffer;
mod chaos;
mod connections;
mod differences;
mod domains;
mod errors;
mod faults;
mod sockets;
mod source_ports;
mod transfers;
mod windows;
pub(super) mod world;

macro_rules! conformance {
    ($provider:ident, $bench:expr; $($module:ident { $($case:ident,)* })*) => {
        mod $provider {
            $(mod $module {
                $(#[test]
                fn $case() {
                    super::super::$module::$case($bench);
                })*
            })*
        }
    };
}

/// Ends a test that has nothing to run on.
macro_rules! some_or_return {
    ($bench:expr) => {
        match $bench {
            Some(bench) => bench,
            None => return,
        }
    };
}

macro_rules! every_provider {
    ($($cases:tt)*) => {
        conformance!(soft, super::super::benches::SoftBench::new(); $($cases)*);
        conformance!(shm, super::super::benches::ShmBench::new(); $($cases)*);
        conformance!(sim, super::super::benches::SimBench::quiet(); $($cases)*);
        conformance!(verbs, some_or_return!(super::super::benches::VerbsBench::new()); $($cases)*);
    };
}

every_provider! {
    connections {
        private_data_travels_both_ways,
        a_reject_says_why,
        no_listener_at_the_port,
        no_host_at_the_address,
        a_listener_is_unique_until_closed,
        a_disconnect_flushes_both_sides,
        data_may_come_before_established,
        many_connections_at_once,
    }
    transfers {
        sends_arrive_in_order,
        inline_needs_no_key,
        messages_are_scattered_and_gathered,
        writes_land_exactly,
        reads_bring_exactly,
        a_write_lands_before_the_next_send,
        both_directions_at_once,
        only_signaled_successes_are_reported,
    }
    windows {
        a_window_opens_and_closes,
        a_window_grants_no_more_than_it_says,
        a_window_serves_its_queue_pair_only,
        a_send_closes_the_peers_window,
        a_region_is_never_invalidated,
        an_open_window_is_not_opened_again,
    }
    domains {
        a_key_of_another_domain_is_refused,
        our_own_requests_stay_in_their_domain,
        a_window_is_bound_within_its_domain,
    }
    errors {
        an_access_error_writes_nothing,
        rights_are_checked,
        a_dropped_region_is_gone,
        our_own_keys_are_checked,
        a_message_longer_than_its_receive_is_refused,
        a_late_receive_is_waited_for,
        a_receive_that_never_comes_is_an_error,
        failing_flushes_in_order,
        a_failed_queue_pair_places_nothing,
        nothing_is_reported_after_release,
        a_peer_that_vanishes_is_noticed,
        queues_have_the_room_that_was_granted,
    }
}
