# The conformance suite of the verbs provider, on rxe0.
# set: ci
# providers: verbs
# kernel may say: non-flush error status
FEEDRAIL_VERBS_ADDRESS=$KERNEL /job/bin/conformance verbs:: --test-threads=1 || fail "see above"
