//! Operations by name, for tests that choose one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Check;
use tollgate::decision::Receipt;
use tollgate::store::{Change, Group, Operation, Payment};

/// The number of the last payment.
static PAYMENTS: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Charge,
    Peek,
    /// A settlement that gives the cost of the check back.
    Refund,
    /// A settlement at the cost of the check.
    Settle,
    Reset,
    Block,
    /// A payment of the cost of the check, with a higher number than all earlier ones.
    Pay,
}

impl Op {
    /// The operations on the checks of a group: one, or a change of each budget.
    pub fn on_group(
        self,
        group: Vec<Check>,
        receipts: Vec<Option<Receipt>>,
        block: Duration,
    ) -> Vec<Operation> {
        match self {
            Self::Charge => vec![Operation::Charge(Group::new(group).unwrap())],
            Self::Peek => vec![Operation::Peek(Group::new(group).unwrap())],
            _ => group
                .into_iter()
                .zip(receipts)
                .map(|(check, receipt)| self.on(check, receipt, block))
                .collect(),
        }
    }

    /// The operation on a check, with the receipt of its charge, and the length of a block.
    pub fn on(self, check: Check, receipt: Option<Receipt>, block: Duration) -> Operation {
        let receipt = receipt.unwrap_or_default();
        let cost = check.cost();
        let change = match self {
            Self::Charge => return Operation::Charge(check.into()),
            Self::Peek => return Operation::Peek(check.into()),
            Self::Refund => Change::Settle {
                receipt,
                cost: receipt.cost().saturating_sub(cost),
            },
            Self::Settle => Change::Settle { receipt, cost },
            Self::Reset => Change::Reset,
            Self::Block => Change::Block(block),
            Self::Pay => {
                let number = 1 + PAYMENTS.fetch_add(1, Ordering::Relaxed);
                Change::Pay(Payment::new(*b"process1", number, cost))
            }
        };
        Operation::Change(check.into(), change)
    }
}
