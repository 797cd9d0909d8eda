-- name: take_owed(room, lease_s, owner, now)
-- Leases up to $1 messages that do not stand in Slack as wanted: cards and answers first, progress last. $3: the process
-- that delivers them; null: nobody can free its leases early.
with due as (
    select place
    from outbox
    where version > delivered_version and refused_at is null
      and next_attempt_at <= coalesce($4::timestamptz, now())
      and (leased_until is null or leased_until <= coalesce($4::timestamptz, now()))
    order by case kind when 'card' then 0 when 'answer' then 0 when 'progress' then 2 else 1 end, next_attempt_at, place
    limit $1
    for update skip locked
)
update outbox set lease_token = gen_random_uuid(), lease_owner = $3,
                  leased_until = coalesce($4::timestamptz, now()) + make_interval(secs => $2)
from due
where outbox.place = due.place
returning outbox.place, run_id, kind, ref, channel_id, thread_ts, version, delivered_version, message_channel,
          message_ts, extract(epoch from coalesce($4::timestamptz, now()) - posting_since)::float8 as posting_age_s,
          attempts, lease_token::text as lease_token, next_attempt_at;

-- name: free_leases(now)
-- The leases of processes that are dead or have left, whatever they still send: a post of theirs is announced and is
-- looked for before it is repeated, an edit of theirs may arrive until the lease would have ended, so what stands is
-- said again after that.
update outbox set
    unsure_until = case when message_ts is not null and posting_since is null then leased_until else unsure_until end,
    lease_token = null, lease_owner = null, leased_until = null,
    next_attempt_at = least(next_attempt_at, coalesce($1::timestamptz, now()))
where version > delivered_version and refused_at is null
  and lease_owner is not null and leased_until > coalesce($1::timestamptz, now())
  and not exists (select from workers w where w.id = outbox.lease_owner and w.died_at is null)
returning place;

-- name: renew_lease(place, lease_token, lease_s, now)
-- No row: the lease is lost.
update outbox set leased_until = coalesce($4::timestamptz, now()) + make_interval(secs => $3)
where place = $1 and lease_token = $2
returning place;

-- name: read_version(place)
select version from outbox where place = $1;

-- name: note_posting(place, lease_token, now)
-- A post is about to be sent, so its outcome is unknown until told. No row: the lease is lost.
update outbox set posting_since = coalesce($3::timestamptz, now())
where place = $1 and lease_token = $2
returning place;

-- name: note_reference(place, lease_token, channel, ts)
-- Where the message stands, whatever version it shows. No row: the lease is lost.
update outbox set message_channel = $3, message_ts = $4, posting_since = null
where place = $1 and lease_token = $2
returning place;

-- name: note_delivered(place, lease_token, version, channel, ts, now, next_place, next_content)
-- A version stands at that reference; a newer one stays owed, and so does this one while an edit of an earlier holder
-- of the lease may still cover it. A card's first stand (or another one, once it was deleted) gives its pointer, if it
-- has one, and the card that it replaced something to link to; each gives its reminder, if it has one, something new to
-- say; what announces a click gives that click its thread. $7: the message that goes on from this one, owed from now on.
-- A channel that took this one is open, so what was given up there because it was closed is tried again. No row: the
-- lease is lost.
with earlier as (
    -- Its reference may be known before its delivery: a post that nobody heard of was found.
    select delivered_version = 0 or message_ts is distinct from $5 as elsewhere from outbox where place = $1
), delivered as (
    update outbox set delivered_version = case when unsure_until > coalesce($6::timestamptz, now())
                                               then delivered_version else greatest(delivered_version, $3) end,
                      next_attempt_at = case when unsure_until > coalesce($6::timestamptz, now())
                                             then unsure_until else next_attempt_at end,
                      unsure_until = case when unsure_until > coalesce($6::timestamptz, now()) then unsure_until end,
                      message_channel = $4, message_ts = $5, posting_since = null, lease_token = null,
                      lease_owner = null, leased_until = null, attempts = 0, last_error = null,
                      updated_at = coalesce($6::timestamptz, now())
    where place = $1 and lease_token = $2
    returning place, run_id, kind, ref, channel_id, thread_ts
), continued as (
    insert into outbox (place, run_id, kind, ref, channel_id, thread_ts, content, next_attempt_at)
    select $7::text, run_id, kind, ref, channel_id, thread_ts, $8::text, coalesce($6::timestamptz, now())
    from delivered where $7::text is not null
    on conflict (place) do nothing
), heard as (
    -- Never waits for a row: whoever has it locked is about to say what is wanted of it.
    select place from outbox
    where message_channel = $4 and refused_at is not null and version > delivered_version
      and last_error ~ ': (is_archived|is_inactive|not_in_channel|channel_not_found)'
      and exists (select from delivered)
    for update skip locked
), revived as (
    update outbox set refused_at = null, attempts = 0, next_attempt_at = coalesce($6::timestamptz, now())
    from heard
    where outbox.place = heard.place
), opened as (
    update inbox set thread_ts = coalesce(delivered.thread_ts, $5), next_attempt_at = coalesce($6::timestamptz, now())
    from delivered
    where inbox.id = substring(delivered.place from '^asked:(\d+)$')::bigint and inbox.thread_ts = ''
), beside as materialized (
    -- Materialized: an update that waited for a row looks at it again in the plan that found it, and PostgreSQL may lose
    -- it there when what it was found by is a flattened "union all".
    select 'notice:' || ref || ':reminder' || substr(place, length('card:' || ref) + 1) as place
    from delivered where starts_with(place, 'card:')
    union all
    select 'pointer:' || delivered.ref
    from delivered, earlier where earlier.elsewhere and starts_with(delivered.place, 'card:')
    union all
    select older.place
    from delivered, earlier, suspensions newer, suspensions old, outbox older
    where earlier.elsewhere and delivered.place = 'card:' || delivered.ref
      and newer.id = delivered.ref and old.id = newer.replaces and old.status = 'replaced'
      and older.run_id = delivered.run_id and older.kind = 'card' and older.ref = old.id and older.refused_at is null
), pointed as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($6::timestamptz, now()), updated_at = coalesce($6::timestamptz, now())
    from beside
    where outbox.place = beside.place
)
select place from delivered;

-- name: retry_delivery(place, lease_token, error, delay_s, absent, now)
-- The lease goes back; due again later. $5: the post whose outcome was unknown is known not to exist. No row: the
-- lease is lost.
update outbox set attempts = attempts + 1, last_error = $3, lease_token = null, lease_owner = null, leased_until = null,
                  next_attempt_at = coalesce($6::timestamptz, now()) + make_interval(secs => $4),
                  posting_since = case when $5::boolean then null else posting_since end
where place = $1 and lease_token = $2
returning place;

-- name: postpone_delivery(place, lease_token, why, delay_s, now)
-- The lease goes back untried, because its turn is far off; due again later. No row: the lease is lost.
update outbox set last_error = $3, lease_token = null, lease_owner = null, leased_until = null,
                  next_attempt_at = coalesce($5::timestamptz, now()) + make_interval(secs => $4)
where place = $1 and lease_token = $2
returning place;

-- name: refuse_delivery(place, lease_token, error, absent, now)
-- Slack said no for good: not tried again until what is wanted changes, or the place is heard of. $4: no post of it can
-- stand; else an unknown one stays unknown, and is looked for when it is tried again. A click that could not be
-- announced is given up with it. No row: the lease is lost.
with refused as (
    update outbox set refused_at = coalesce($5::timestamptz, now()), last_error = $3, lease_token = null,
                      lease_owner = null, leased_until = null,
                      posting_since = case when $4::boolean then null else posting_since end
    where place = $1 and lease_token = $2
    returning place
), unopened as (
    update inbox set handled_at = coalesce($5::timestamptz, now()), parked_at = coalesce($5::timestamptz, now()),
                     error = $3
    from refused
    where inbox.id = substring(refused.place from '^asked:(\d+)$')::bigint and inbox.thread_ts = ''
)
select place from refused;

-- name: read_message_inputs(place)
-- What a message is rendered from, as one snapshot. No row: its run was removed, and the message with it.
select o.content, o.ref, o.kind, to_json(r) as run,
       (select coalesce(json_agg(x order by x.call_seq, x.call_position, x.number), '[]')
        from (select s.*, array(select v.user_id from votes v where v.suspension_id = s.id order by v.at, v.user_id) as votes
              from suspensions s where s.run_id = o.run_id) x) as suspensions,
       (select coalesce(json_agg(x order by x.id), '[]')
        from (select t.id, t.kind, t.body, t.ms, t.spend_usd from trace t
              where t.run_id = o.run_id order by t.id desc limit 10) x) as trace,
       (select coalesce(json_agg(x), '[]')
        from (select l.place, l.message_channel, l.message_ts from outbox l
              where l.run_id = o.run_id and l.message_ts is not null) x) as links,
       (select max(a.ended_at)
        from suspensions s
        join runs mine on mine.team_id = r.team_id and mine.user_id = r.user_id
        join actions a on a.run_id = mine.id and a.tool = s.tool and a.state = 'succeeded'
                      and a.arguments_digest = encode(sha256(convert_to(s.arguments, 'UTF8')), 'hex')
        where o.kind = 'card' and s.id = o.ref and s.status = 'open'
          and (a.run_id, a.call_seq, a.call_position) <> (s.run_id, s.call_seq, s.call_position)) as identical_success_at
from outbox o left join runs r on r.id = o.run_id
where o.place = $1;

-- name: find_message(place)
-- Where a message stands in Slack. No row: nowhere yet.
select message_channel, message_ts from outbox where place = $1 and message_ts is not null;

-- name: mirror_card(suspension_id, channel_id, thread_ts, now)
-- The same card at one more place (such as an approver's direct messages). No row: it is there already, or there is
-- no such suspension.
insert into outbox (place, run_id, kind, ref, channel_id, thread_ts, next_attempt_at)
select 'card:' || s.id || ':' || $2::text, s.run_id, 'card', s.id, $2, $3, coalesce($4::timestamptz, now())
from suspensions s where s.id = $1
on conflict (place) do nothing
returning place;

-- name: mirror_message(place, channel_id, now)
-- The same message at one more place (its owner's direct messages). No row: it is there already.
insert into outbox (place, run_id, kind, ref, channel_id, thread_ts, content, next_attempt_at)
select place || ':' || $2::text, run_id, kind, ref, $2, null, content, coalesce($3::timestamptz, now())
from outbox where place = $1
on conflict (place) do nothing
returning place;

-- name: withdraw_message(place, lease_token, absent)
-- A message that came too late to be said, and that nobody can have seen, is not owed any more. $3: an unknown post of
-- it is known not to exist. No row: the lease is lost, or it may stand somewhere.
delete from outbox
where place = $1 and lease_token = $2 and message_ts is null and (posting_since is null or $3::boolean)
returning place;

-- name: lock_alert(place)
-- Locks an alert and returns its content. No row: there is no such alert.
select content, run_id from outbox where place = $1 and kind = 'alert' for update;

-- name: redraw_alert(place, content, now)
-- The alert says something new; where it stands, it is edited.
update outbox set content = $2, version = version + 1, attempts = 0, next_attempt_at = coalesce($3::timestamptz, now()),
                  updated_at = coalesce($3::timestamptz, now())
where place = $1 and kind = 'alert'
returning place;

-- name: refresh_progress(room, every_s, now)
-- Progress lines of claimed runs that show an older step or doing than the run's, not redrawn for $2 seconds: the
-- step itself writes nothing for them.
with stale as (
    select o.place, r.step || ' ' || r.doing as shown
    from runs r join outbox o on o.place = 'progress:' || r.id
    where r.claimed_by is not null and o.version = o.delivered_version and o.refused_at is null
      and o.updated_at <= coalesce($3::timestamptz, now()) - make_interval(secs => $2)
      and o.ref is distinct from r.step || ' ' || r.doing
    limit $1
    for update of o skip locked
)
update outbox set ref = stale.shown, version = version + 1, next_attempt_at = coalesce($3::timestamptz, now())
from stale
where outbox.place = stale.place
returning outbox.place;

-- name: reserve_pace(team_id, channel_id, method, interval_s, now)
-- Books the next request of this kind for everybody; returns the seconds to wait before it goes out.
insert into pace as p (team_id, channel_id, method, next_at)
values ($1, $2, $3, coalesce($5::timestamptz, now()) + make_interval(secs => $4))
on conflict (team_id, channel_id, method) do update set
    next_at = greatest(coalesce($5::timestamptz, now()), p.next_at) + make_interval(secs => $4)
returning extract(epoch from next_at - make_interval(secs => $4) - coalesce($5::timestamptz, now()))::float8 as wait_s;

-- name: read_pace(team_id, channel_id, method, now)
-- The seconds until a slot of this kind is free. No row: one is.
select extract(epoch from next_at - coalesce($4::timestamptz, now()))::float8 as wait_s
from pace where team_id = $1 and channel_id = $2 and method = $3;

-- name: back_off_pace(team_id, channel_id, method, pause_s, now)
-- Slack asked for a pause of this kind; it holds for every replica.
insert into pace as p (team_id, channel_id, method, next_at)
values ($1, $2, $3, coalesce($5::timestamptz, now()) + make_interval(secs => $4))
on conflict (team_id, channel_id, method) do update set next_at = greatest(p.next_at, excluded.next_at);
