-- name: step_runs(run_ids, claim_tokens, first_seqs, counts, steps, tool_calls, spends_micro, dearest_micro, elapsed_ms, doings, charges_crash, scopes, after_ms, message_runs, seqs, roles, bodies, raws, answers_seqs, answers_positions, trace_runs, trace_kinds, trace_bodies, trace_ms, trace_spends_micro, mail, now)
-- running -> running for several runs in one commit: step_run, once for each. Every run has its own fence; a run whose
-- fence does not hold, or whose row somebody has locked just now, has no row in the answer and nothing written (the
-- caller then tries it alone). Rows are locked in the order of their ids, so two such statements never wait on each
-- other in a ring.
with wanted as (
    select * from unnest($1::text::text[], $2::text::uuid[], $3::text::integer[], $4::text::integer[],
                         $5::text::integer[], $6::text::integer[], $7::text::bigint[], $8::text::bigint[],
                         $9::text::bigint[], $10::text[], $11::text::boolean[], $12::text[],
                         $13::text::bigint[])
        with ordinality
        as w (id, claim_token, first_seq, count, steps, tool_calls, spend_micro, dearest_micro, elapsed_ms, doing,
              charges_crash, scope, after_ms, place)
), held as (
    select r.id
    from wanted w join runs r on r.id = w.id
    where r.claim_token = w.claim_token and r.state = 'running' and r.next_seq = coalesce(w.first_seq, r.next_seq)
      and r.elapsed_ms = coalesce(w.after_ms, r.elapsed_ms)
    order by r.id
    for update of r skip locked
), moved as (
    update runs r set
        step = r.step + w.steps,
        tool_calls = r.tool_calls + w.tool_calls,
        spend_usd = r.spend_usd + w.spend_micro * 0.000001,
        dearest_call_usd = greatest(r.dearest_call_usd, w.dearest_micro * 0.000001),
        elapsed_ms = r.elapsed_ms + w.elapsed_ms,
        doing = coalesce(w.doing, r.doing),
        charge_due = r.charge_due and not w.charges_crash,
        scope = coalesce(w.scope, r.scope),
        scope_resolved_at = case when w.scope is null then r.scope_resolved_at else coalesce($27::timestamptz, now()) end,
        crashes = case when w.steps > 0 then 0 else r.crashes end,
        next_seq = r.next_seq + w.count
    from held, wanted w
    where r.id = held.id and w.id = r.id and w.claim_token = r.claim_token and r.state = 'running'
      and r.next_seq = coalesce(w.first_seq, r.next_seq)
      and r.elapsed_ms = coalesce(w.after_ms, r.elapsed_ms)
    returning r.id, r.news, w.place::integer - 1 as place
), said as (
    insert into messages (run_id, seq, role, body, raw, answers_seq, answers_position, created_at, body_hash)
    select moved.id, m.seq, m.role, m.body, m.raw, m.answers_seq, m.answers_position, coalesce($27::timestamptz, now()),
           hashtextextended(m.body, 1)
    from unnest($14::text::integer[], $15::text::integer[], $16::text::text[], $17::text[], $18::bytea[],
                $19::text::integer[], $20::text::integer[])
             as m (place, seq, role, body, raw, answers_seq, answers_position)
    join moved on moved.place = m.place
), traced as (
    insert into trace (run_id, at, kind, body, ms, spend_usd)
    select moved.id, coalesce($27::timestamptz, now()), t.kind, t.body, t.ms, t.spend_micro * 0.000001
    from unnest($21::text::integer[], $22::text::text[], $23::text[], $24::text::integer[], $25::text::bigint[])
             as t (place, kind, body, ms, spend_micro)
    join moved on moved.place = t.place
), mailed as (
    update inbox set handled_at = coalesce($27::timestamptz, now())
    from moved
    where inbox.id = any($26::text::bigint[]) and inbox.run_id = moved.id and inbox.handled_at is null
)
select place, news from moved;
