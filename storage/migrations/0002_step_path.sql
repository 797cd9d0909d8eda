-- The step path pays for nothing that its own guards settle already.
-- A step inserts messages and trace only for the run that the same statement has just updated, so a foreign key proves
-- nothing there, yet it locked that row once more for each table and took a third of the server's time. Retention
-- removes both explicitly (remove_ended_runs).
alter table messages drop constraint messages_run_id_fkey;
alter table trace drop constraint trace_run_id_fkey;
-- A message of a few kilobytes stays in its row: read in one piece at a resumption, and no second table written at a step.
alter table messages set (toast_tuple_target = 8160);
