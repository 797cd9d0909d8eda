-- The whole store. Rules that PostgreSQL can keep are kept here, as CHECKs and unique keys; every move is one guarded
-- statement or transaction in storage/queries. Times are timestamptz by the database's clock, money numeric(10,6) USD.
-- Hot tables leave room on each page so that a step's update of runs stays on its page (HOT): no index may name a
-- column that a step writes.

create table runs (
    id                text primary key,
    team_id           text not null,
    channel_id        text not null,
    thread_ts         text not null,
    user_id           text not null,
    owner             text not null,                        -- core.User as JSON
    question          text not null,
    route             text not null,                        -- JSON: model, tools with versions, agent
    max_steps         integer not null,
    max_tool_calls    integer not null,
    max_spend_usd     numeric(10,6) not null,
    max_elapsed_ms    bigint not null,
    state             text not null check (state in ('running', 'suspended', 'halted', 'answered', 'failed')),
    halt_reason       text check (halt_reason in ('budget_steps', 'budget_spend', 'budget_tool_calls', 'budget_elapsed',
                                                  'model_unavailable', 'outcome_unknown', 'suspension_expired',
                                                  'stopped_by_user')),
    fail_reason       text,
    detail            text not null default '',             -- a halt's or failure's words for people
    step              integer not null default 0 check (step >= 0),
    spend_usd         numeric(10,6) not null default 0 check (spend_usd >= 0),
    tool_calls        integer not null default 0 check (tool_calls >= 0),
    elapsed_ms        bigint not null default 0 check (elapsed_ms >= 0),
    doing             text not null default '',             -- what the agent does now, for the progress line
    scope             text not null,                        -- core.Scope as JSON
    scope_resolved_at timestamptz not null,
    claim_token       uuid,
    claimed_by        uuid,                                 -- workers.id
    stop_requested    text,                                 -- by whom
    news              bigint not null default 0,            -- writes by others than the claim's holder
    recovery_attempts integer not null default 0,
    crashes           integer not null default 0,           -- since the last committed step
    charge_due        boolean not null default false,       -- a crash may have cost a model call
    continuations     integer not null default 0,
    halts             integer not null default 0,
    next_worst_usd    numeric(10,6) not null default 0,
    dearest_call_usd  numeric(10,6) not null default 0,
    next_seq          integer not null default 0,
    parent_id         text references runs (id) on delete set null,
    followed_up       boolean not null default false,       -- a follow-up took over: its Continue is retired
    created_at        timestamptz not null default now(),
    claimable_at      timestamptz not null default now(),   -- order of claims; set when a run becomes unclaimed
    ended_at          timestamptz,
    constraint claimed_only_while_running check (claim_token is null or state = 'running'),
    constraint claim_names_worker check ((claim_token is null) = (claimed_by is null)),
    constraint halted_with_reason check ((state = 'halted') = (halt_reason is not null)),
    constraint failed_with_reason check ((state = 'failed') = (fail_reason is not null)),
    constraint ended_with_time check ((state in ('halted', 'answered', 'failed')) = (ended_at is not null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
create index runs_claimable on runs (claimable_at) where state = 'running' and claim_token is null;
create index runs_claimed on runs (claimed_by) where claimed_by is not null;
create index runs_of_user on runs (team_id, user_id, created_at desc);
create index runs_of_thread on runs (team_id, channel_id, thread_ts, created_at desc);
create index runs_ended on runs (ended_at) where ended_at is not null;
create index runs_of_parent on runs (parent_id) where parent_id is not null;

-- One live run per (thread, owner). A small table, so that runs can be partitioned by id.
create table live_threads (
    team_id    text not null,
    channel_id text not null,
    thread_ts  text not null,
    user_id    text not null,
    run_id     text not null unique references runs (id) on delete cascade,
    primary key (team_id, channel_id, thread_ts, user_id)
);

-- The conversation: append-only. body is core.conversation.encode_body's text, raw the adapter's bytes.
create table messages (
    run_id          text not null references runs (id) on delete cascade,
    seq             integer not null,
    role            text not null check (role in ('user', 'assistant', 'tool')),
    body            text not null,
    raw             bytea,
    answers_seq     integer,
    answers_position integer,
    created_at      timestamptz not null default now(),
    primary key (run_id, seq),
    constraint tool_message_answers_a_call
        check ((role = 'tool') = (answers_seq is not null) and (answers_seq is null) = (answers_position is null))
);
create unique index one_result_per_call on messages (run_id, answers_seq, answers_position) where role = 'tool';

create table suspensions (
    id               text primary key,                      -- "<run>.<random>"
    run_id           text not null references runs (id) on delete cascade,
    call_seq         integer not null,
    call_position    integer not null,
    number           integer not null,                      -- 1, 2, … within the call
    kind             text not null check (kind in ('approval', 'outcome')),
    status           text not null check (status in ('open', 'approved', 'declined', 'expired', 'replaced', 'superseded',
                                                     'edited', 'stopped', 'happened', 'did_not_happen')),
    token            text not null unique,                  -- "<run>.<random>"
    tool             text not null,
    tool_version     text not null,
    arguments        text not null,                         -- canonical JSON, as they will execute
    preview          text not null,                         -- core.Preview as JSON
    digest           text not null,
    policy           text not null,                         -- core.Approval as JSON
    asked_by         text not null,
    opened_at        timestamptz not null default now(),
    expires_at       timestamptz not null,
    decided_at       timestamptz,
    decided_by       text,
    reason           text,
    edited_arguments text,
    edited_by        text,
    replaced_by      text,
    replaces         text,
    note             text,
    settled_kind     text check (settled_kind in ('done', 'not_executed', 'failed', 'unknown')),
    settled_text     text,
    unique (run_id, call_seq, call_position, number),
    constraint decided_with_time check (status in ('open', 'replaced', 'superseded', 'expired', 'stopped')
                                        or (decided_at is not null and decided_by is not null)),
    constraint window_is_at_most_30_minutes check (expires_at <= opened_at + interval '30 minutes')
);
create unique index one_open_suspension_per_call on suspensions (run_id, call_seq, call_position) where status = 'open';
create index suspensions_due on suspensions (expires_at) where status = 'open';

create table votes (
    suspension_id text not null references suspensions (id) on delete cascade,
    user_id       text not null,
    at            timestamptz not null default now(),
    primary key (suspension_id, user_id)
);

-- The ledger of writes: one row per call and arguments.
create table actions (
    run_id           text not null references runs (id) on delete cascade,
    call_seq         integer not null,
    call_position    integer not null,
    arguments_digest text not null,
    idempotency_key  text not null unique,
    tool             text not null,
    tool_version     text not null,
    arguments        text not null,
    state            text not null check (state in ('intended', 'succeeded', 'failed', 'unknown')),
    suspension_id    text,
    timeout_s        double precision not null,
    intended_at      timestamptz not null default now(),
    ended_at         timestamptz,
    result           text,
    primary key (run_id, call_seq, call_position, arguments_digest)
);

-- For people; never read back to rebuild state.
create table trace (
    run_id    text not null references runs (id) on delete cascade,
    id        bigint generated always as identity,
    at        timestamptz not null default now(),
    kind      text not null,
    body      text not null default '{}',                   -- JSON
    ms        integer,
    spend_usd numeric(10,6),
    primary key (run_id, id)
);

create table workers (
    id         uuid primary key,
    host       text not null,
    pid        integer not null,
    role       text not null,                               -- worker, alone
    lock_key   bigint not null,
    holds_lock boolean not null,
    started_at timestamptz not null default now(),
    beat_at    timestamptz not null default now(),
    died_at    timestamptz,                                 -- found dead by a reaper; a later beat clears it
    held       integer                                      -- claims it held when found dead: alone is exactly 1
) with (fillfactor = 50);

-- What Slack sent, stored before the ack. Dedupe on event id and on (team, channel, ts).
create table inbox (
    id              bigint generated always as identity primary key,
    event_id        text not null unique,
    kind            text not null check (kind in ('mention', 'direct')),
    team_id         text not null,
    channel_id      text not null,
    ts              text not null,
    thread_ts       text not null,
    user_id         text not null,
    text            text not null,                          -- as typed, unescaped, without the mention of Atlas
    payload         text not null,                          -- the event's JSON, for people
    received_at     timestamptz not null default now(),
    run_id          text,                                   -- attached to a live run, to be appended by its holder
    handled_at      timestamptz,
    attempts        integer not null default 0,
    next_attempt_at timestamptz not null default now(),
    leased_until    timestamptz,
    parked_at       timestamptz,
    error           text,
    unique (team_id, channel_id, ts)
);
create index inbox_open on inbox (team_id, channel_id, thread_ts, id) where handled_at is null;
create index inbox_of_run on inbox (run_id, id) where handled_at is null and run_id is not null;
create index inbox_handled on inbox (handled_at) where handled_at is not null;

-- What each Slack message should show. One row per place; version says what is wanted, delivered_version what stands.
create table outbox (
    place             text primary key,
    run_id            text references runs (id) on delete cascade,
    kind              text not null check (kind in ('card', 'progress', 'answer', 'halt', 'failure', 'notice', 'alert')),
    ref               text not null default '',             -- suspension id, halt number …: what to render
    channel_id        text not null,                        -- '' = the alert channel
    thread_ts         text,
    content           text not null default '{}',           -- JSON, for notices and alerts, which have no other row
    version           integer not null default 1,
    delivered_version integer not null default 0,
    message_channel   text,
    message_ts        text,
    lease_token       uuid,
    leased_until      timestamptz,
    posting_since     timestamptz,                          -- a post whose outcome is not known
    attempts          integer not null default 0,
    next_attempt_at   timestamptz not null default now(),
    last_error        text,
    refused_at        timestamptz,                          -- Slack said no for good
    created_at        timestamptz not null default now(),
    updated_at        timestamptz not null default now()
) with (fillfactor = 70);
create index outbox_owed on outbox (next_attempt_at) where version > delivered_version and refused_at is null;
create index outbox_of_run on outbox (run_id) where run_id is not null;

-- Pace towards Slack, shared by the replicas: when the next request of this kind may go out.
create table pace (
    team_id    text not null,
    channel_id text not null,
    method     text not null,
    next_at    timestamptz not null,
    primary key (team_id, channel_id, method)
);

-- Every attempt at a decision, allowed or refused; outlives its run, so no foreign key, no arguments, no preview.
create table audit (
    id            bigint generated always as identity primary key,
    at            timestamptz not null default now(),
    run_id        text not null,
    call          text,
    suspension_id text,
    tool          text,
    digest        text,
    act           text not null,                            -- approve, decline, vote, edit, stop, continue …
    by            text not null,                            -- user id, or operator:<os user>
    via           text not null,                            -- button, modal, home, command, mention, cli, job
    allowed       boolean not null,
    why           text not null default ''
);
create index audit_of_run on audit (run_id, id);
create index audit_age on audit (at);

-- A run in the shape of the original design: arrays, the pending call and its token, the last sign of life.
create view run_documents as
select r.id, r.state, r.halt_reason, r.question, r.step, r.spend_usd, r.tool_calls, r.elapsed_ms, r.scope,
       (select coalesce(array_agg(m.body order by m.seq), '{}') from messages m where m.run_id = r.id) as messages,
       (select coalesce(array_agg(t.kind || ' ' || t.body order by t.id), '{}') from trace t where t.run_id = r.id) as trace,
       s.arguments as pending, s.tool as pending_tool, s.token as pending_token, s.expires_at as pending_expires_at,
       w.beat_at as heartbeat_at
from runs r
left join lateral (select * from suspensions s where s.run_id = r.id and s.status = 'open'
                   order by s.call_seq, s.call_position limit 1) s on true
left join workers w on w.id = r.claimed_by;
