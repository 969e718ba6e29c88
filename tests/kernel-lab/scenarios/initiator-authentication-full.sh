# Our host authenticates to the kernel's target with each hash and each group.
# set: full
# limit: 2400
# kernel may say: nvmet:
hashes="sha256 sha384 sha512" groups="null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192"
. scenarios/initiator-authentication.sh
