//! Concurrent futures, in bounded numbers.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

/// A future that runs, or its result that waits for those of the futures before it.
enum OrderedSlot<F: Future> {
    Running(Pin<Box<F>>),
    Done(F::Output),
}

/// Runs at most `at_a_time` futures concurrently, and returns their results in their order, or the
/// error of the first that failed: the others are dropped then.
pub(crate) async fn in_order<F, T, E>(
    at_a_time: usize,
    futures: impl IntoIterator<Item = F>,
) -> Result<Vec<T>, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = futures.into_iter();
    let (mut slots, mut done) = (VecDeque::<OrderedSlot<F>>::new(), Vec::new());
    std::future::poll_fn(|context| {
        loop {
            while slots.len() < at_a_time
                && let Some(future) = waiting.next()
            {
                slots.push_back(OrderedSlot::Running(Box::pin(future)));
            }
            if slots.is_empty() {
                return Poll::Ready(Ok(std::mem::take(&mut done)));
            }
            for slot in &mut slots {
                if let OrderedSlot::Running(future) = slot
                    && let Poll::Ready(result) = future.as_mut().poll(context)
                {
                    *slot = OrderedSlot::Done(result);
                }
            }
            let before = done.len();
            while let Some(OrderedSlot::Done(_)) = slots.front() {
                let Some(OrderedSlot::Done(result)) = slots.pop_front() else { break };
                match result {
                    Ok(value) => done.push(value),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            if done.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// A future that is ready after so many polls; `running` counts those that are not.
    async fn after(
        polls: u32,
        running: &Cell<usize>,
        result: Result<u32, u32>,
    ) -> Result<u32, u32> {
        running.set(running.get() + 1);
        let mut left = polls;
        std::future::poll_fn(|_| {
            let is_over = left == 0;
            left = left.saturating_sub(1);
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        running.set(running.get() - 1);
        result
    }

    fn run<T>(future: impl Future<Output = T>, mut each: impl FnMut()) -> (T, u32) {
        let mut future = pin!(future);
        for polls in 1.. {
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            each();
            if let Poll::Ready(output) = polled {
                return (output, polls);
            }
        }
        unreachable!("it ends before the numbers do")
    }

    #[test]
    fn so_many_run_beside_each_other() {
        let (running, mut most) = (Cell::new(0), 0);
        let futures = (0..100).map(|i| after(3, &running, Ok(i)));
        let (results, polls) = run(in_order(10, futures), || most = most.max(running.get()));
        assert_eq!(results, Ok((0..100).collect()));
        assert_eq!(most, 10);
        assert!(polls <= 10 * 4, "{polls}");
    }

    #[test]
    fn results_keep_the_order() {
        let running = Cell::new(0);
        let futures = (0..50).map(|i| after(i * 7 % 11, &running, Ok(i)));
        assert_eq!(run(in_order(8, futures), || {}).0, Ok((0..50).collect()));
        let none = std::iter::empty::<std::future::Ready<Result<u32, u32>>>();
        assert_eq!(run(in_order(8, none), || {}).0, Ok(Vec::new()));
    }

    #[test]
    fn the_first_error_ends_all() {
        let running = Cell::new(0);
        let futures = [(5, Ok(0)), (1, Err(7)), (0, Err(8)), (0, Ok(3))];
        let futures = futures.map(|(polls, result)| after(polls, &running, result));
        assert_eq!(run(in_order(4, futures), || {}).0, Err(7));
    }
}
