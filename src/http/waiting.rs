//! A request that waits: for a look-up, for its decision, for its delay, for the inner service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use tokio::time::{Instant, Sleep, sleep};
use tower_service::Service;

use super::conclusion::{Asked, Conclusion, Report};
use super::in_flight::{Entered, Entering};
use super::limits::LookUp;
use super::policy::Question;
use super::settings::Settings;
use super::{InFlight, ResponseBody};
use crate::store::Answer;

pub(super) struct Waiting<S, ReqBody> {
    /// Not ready: it is polled when the request is about to be forwarded.
    service: S,
    /// In parts, because each stage reads or changes the head. Taken when the wait is over.
    request: Option<(Parts, ReqBody)>,
    report: Option<Report>,
    permits: Option<InFlight>,
    stage: Stage,
}

enum Stage {
    /// For permits. The question is taken when they are there.
    Entering {
        entering: Entering,
        question: Option<Question>,
        since: Instant,
        settings: Arc<Settings>,
    },
    /// For look-ups of the application.
    LookingUp { lookup: LookUp, since: Instant, settings: Arc<Settings> },
    /// For a decision.
    Checking { answer: Answer, asked: Asked, settings: Arc<Settings> },
    /// For the delay of an allowed request.
    Delaying(Pin<Box<Sleep>>),
    /// For the inner service.
    Preparing,
}

/// The next step, or the inner service's error.
type NextOf<S, ReqBody, ResBody> = Result<
    Next<<S as Service<Request<ReqBody>>>::Future, ResBody>,
    <S as Service<Request<ReqBody>>>::Error,
>;

/// The next step after the wait.
pub(super) enum Next<F, ResBody> {
    Calling { response: F, report: Option<Report>, permits: Option<InFlight> },
    Rejected(Response<ResponseBody<ResBody>>),
}

impl<S, ReqBody> Waiting<S, ReqBody> {
    /// A request that waits for permits.
    pub(super) fn for_permits(
        service: S,
        request: (Parts, ReqBody),
        entering: Entering,
        question: Question,
        settings: Arc<Settings>,
    ) -> Self {
        let (question, since) = (Some(question), Instant::now());
        let stage = Stage::Entering { entering, question, since, settings };
        Self::new(service, request, stage)
    }

    /// A request that waits for look-ups.
    pub(super) fn for_lookup(
        service: S,
        request: (Parts, ReqBody),
        lookup: LookUp,
        settings: Arc<Settings>,
    ) -> Self {
        let stage = Stage::LookingUp { lookup, since: Instant::now(), settings };
        Self::new(service, request, stage)
    }

    /// A request that waits for its decision.
    pub(super) fn for_decision(
        service: S,
        request: (Parts, ReqBody),
        answer: Answer,
        asked: Asked,
        settings: Arc<Settings>,
    ) -> Self {
        let stage = Stage::Checking { answer, asked, settings };
        Self::new(service, request, stage)
    }

    /// An allowed request that waits for its delay.
    pub(super) fn for_delay(
        service: S,
        request: (Parts, ReqBody),
        delay: Duration,
        report: Option<Report>,
    ) -> Self {
        let stage = Stage::after(delay);
        Self { report, ..Self::new(service, request, stage) }
    }

    const fn new(service: S, request: (Parts, ReqBody), stage: Stage) -> Self {
        Self { service, request: Some(request), report: None, permits: None, stage }
    }
}

impl<S, ReqBody> Waiting<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) fn poll<ResBody>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<NextOf<S, ReqBody, ResBody>> {
        loop {
            match &mut self.stage {
                Stage::Entering { entering, question, since, settings } => {
                    let entered = ready!(entering.as_mut().poll(cx));
                    let Some((parts, _)) = &mut self.request else { return Poll::Pending };
                    let Some(question) = question.take() else { return Poll::Pending };
                    let stage = match entered {
                        Entered::Permits(permits) => {
                            settings.hold(&permits, parts);
                            self.permits = Some(permits);
                            Stage::of(question, *since, settings, parts)
                        }
                        Entered::Denied(limit) => {
                            Err(settings.too_many_in_flight(&limit, parts).into())
                        }
                        Entered::Failed(error) => {
                            Err(settings.without_permits(&error, parts).into())
                        }
                    };
                    match stage {
                        Ok(stage) => self.stage = stage,
                        Err(response) => return Poll::Ready(Ok(Next::Rejected(*response))),
                    }
                }
                Stage::LookingUp { lookup, since, settings } => {
                    let Some((parts, _)) = &mut self.request else { return Poll::Pending };
                    let question = match ready!(lookup.poll(parts, cx)) {
                        Ok(group) => group.map_or(Question::Unlimited, Question::Group),
                        Err(unasked) => Question::Rejected(unasked),
                    };
                    match Stage::of(question, *since, settings, parts) {
                        Ok(stage) => self.stage = stage,
                        Err(response) => return Poll::Ready(Ok(Next::Rejected(*response))),
                    }
                }
                Stage::Checking { answer, asked, settings } => {
                    let answer = ready!(asked.observed.span.poll(answer, cx));
                    let Some((parts, _)) = &mut self.request else { return Poll::Pending };
                    let delay = match settings.conclude(&answer, asked, parts) {
                        Conclusion::Forward { delay, report } => {
                            self.report = report;
                            delay
                        }
                        Conclusion::Reject(response) => {
                            return Poll::Ready(Ok(Next::Rejected(response)));
                        }
                    };
                    self.stage = Stage::after(delay);
                }
                Stage::Delaying(delay) => {
                    ready!(delay.as_mut().poll(cx));
                    self.stage = Stage::Preparing;
                }
                Stage::Preparing => {
                    if self.request.is_none() {
                        return Poll::Pending;
                    }
                    ready!(self.service.poll_ready(cx))?;
                    let Some((parts, body)) = self.request.take() else { return Poll::Pending };
                    let (report, permits) = (self.report.take(), self.permits.take());
                    let response = self.service.call(Request::from_parts(parts, body));
                    return Poll::Ready(Ok(Next::Calling { response, report, permits }));
                }
            }
        }
    }
}

impl Stage {
    /// The next stage of a request, or the response if it is rejected.
    fn of<ResBody>(
        question: Question,
        since: Instant,
        settings: &Arc<Settings>,
        parts: &mut Parts,
    ) -> Result<Self, Box<Response<ResponseBody<ResBody>>>> {
        let shared = Arc::clone(settings);
        Ok(match question {
            Question::Unlimited | Question::Exempt => {
                settings.forward_uncharged(parts);
                Self::Preparing
            }
            Question::Group(group) => {
                let asked = settings.kept(&group);
                let answer = settings.ask_since(since, group, &asked);
                Self::Checking { answer, asked, settings: shared }
            }
            Question::LookUp(lookup) => Self::LookingUp { lookup, since, settings: shared },
            Question::Rejected(unasked) => return Err(settings.answer(unasked, parts).into()),
        })
    }

    fn after(delay: Duration) -> Self {
        if delay.is_zero() { Self::Preparing } else { Self::Delaying(Box::pin(sleep(delay))) }
    }
}
