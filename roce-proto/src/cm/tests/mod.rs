mod flood;
mod messages;
mod pair;
mod simulation;
mod states;
mod strangers;
