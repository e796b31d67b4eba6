-- What the service remembers as relations: names and order of the columns are those of the pages "QUERY_HISTORY",
-- "COPY_HISTORY" and "LOAD_HISTORY view" (information schema), and of "QUERY_HISTORY view",
-- "QUERY_ATTRIBUTION_HISTORY view", "SESSIONS view", "LOGIN_HISTORY view", "COPY_HISTORY view" and
-- "LOAD_HISTORY view" (account usage). A part may have other parts in it, by their names in braces.
--
-- Of statements and logins, the relation {e} has what module query_history keeps; a statement that runs has the
-- epoch as its end.

-- who
query_id, text AS query_text, database_name, schema_name, query_type, session_id, user_name, role_name,
warehouse_name, warehouse_size, CASE WHEN warehouse_size IS NOT NULL THEN 'STANDARD' END AS warehouse_type,
CASE WHEN warehouse_size IS NOT NULL THEN 1 END AS cluster_number, query_tag

-- error
error_code, error_message, {start} AS start_time, {stop} AS end_time, {elapsed} AS total_elapsed_time,
0 AS bytes_scanned

-- times
0 AS compilation_time, {elapsed} AS execution_time, 0 AS queued_provisioning_time, 0 AS queued_repair_time,
0 AS queued_overload_time, 0 AS transaction_blocked_time,
{text} AS outbound_data_transfer_cloud, {text} AS outbound_data_transfer_region,
0 AS outbound_data_transfer_bytes, {text} AS inbound_data_transfer_cloud,
{text} AS inbound_data_transfer_region, 0 AS inbound_data_transfer_bytes

-- end
CAST(0 AS DOUBLE) AS credits_used_cloud_services, '10.0.0' AS release_version,
0 AS external_function_total_invocations, 0 AS external_function_total_sent_rows,
0 AS external_function_total_received_rows, 0 AS external_function_total_sent_bytes,
0 AS external_function_total_received_bytes, false AS is_client_generated_statement,
text_hash AS query_hash, 1 AS query_hash_version

-- INFORMATION_SCHEMA
SELECT {who}, CASE status WHEN 'FAIL' THEN 'FAILED_WITH_ERROR' ELSE status END AS execution_status, {error},
    produced AS rows_produced, {times}, {end}
FROM {e}

-- QUERY_HISTORY
SELECT query_id, text AS query_text, {number} AS database_id, database_name, {number} AS schema_id, schema_name,
    query_type, session_id, user_name, role_name, {number} AS warehouse_id, warehouse_name, warehouse_size,
    CASE WHEN warehouse_size IS NOT NULL THEN 'STANDARD' END AS warehouse_type,
    CASE WHEN warehouse_size IS NOT NULL THEN 1 END AS cluster_number, query_tag, status AS execution_status,
    {error}, CAST(0 AS DOUBLE) AS percentage_scanned_from_cache, 0 AS bytes_written,
    0 AS bytes_written_to_result, 0 AS bytes_read_from_result, produced AS rows_produced,
    inserted AS rows_inserted, updated AS rows_updated, deleted AS rows_deleted, unloaded AS rows_unloaded,
    0 AS bytes_deleted, {times}, {end}
FROM {e} WHERE status <> 'RUNNING'

-- QUERY_ATTRIBUTION_HISTORY
-- Credits of the time that a statement ran, as if a warehouse of its size had: each size has twice those of the
-- one before (page "Overview of warehouses").
SELECT query_id, {text} AS parent_query_id, {text} AS root_query_id, {number} AS warehouse_id, warehouse_name,
    text_hash AS query_hash, {text} AS query_parameterized_hash, query_tag, user_name, {start} AS start_time,
    {stop} AS end_time, CAST({elapsed} AS DOUBLE) / 3600000 * CASE warehouse_size WHEN 'X-Small' THEN 1
        WHEN 'Small' THEN 2 WHEN 'Medium' THEN 4 WHEN 'Large' THEN 8 WHEN 'X-Large' THEN 16 WHEN '2X-Large' THEN 32
        WHEN '3X-Large' THEN 64 WHEN '4X-Large' THEN 128 WHEN '5X-Large' THEN 256 ELSE 512 END
        AS credits_attributed_compute,
    CAST(NULL AS DOUBLE) AS credits_used_query_acceleration
FROM {e} WHERE status <> 'RUNNING' AND warehouse_size IS NOT NULL

-- SESSIONS
SELECT session_id, {at} AS created_on, user_name, {text} AS authentication_method, event_id AS login_event_id,
    {text} AS client_application_version, client AS client_application_id, {text} AS client_environment,
    {text} AS client_build_id, {text} AS client_version, {text} AS closed_reason
FROM {e} WHERE session_id IS NOT NULL

-- LOGIN_HISTORY
SELECT event_id, {at} AS event_timestamp, 'LOGIN' AS event_type, user_name, client_ip,
    client AS reported_client_type, {text} AS reported_client_version, {text} AS first_authentication_factor,
    {text} AS second_authentication_factor,
    CASE WHEN error_code IS NULL THEN 'YES' ELSE 'NO' END AS is_success,
    CAST(error_code AS BIGINT) AS error_code, error_message, 0 AS related_event_id, {text} AS connection
FROM {e}

-- COPY_COLUMNS
file_name, stage_location, {loaded} AS last_load_time, rows_loaded AS row_count, rows_parsed AS row_parsed,
file_size, first_error AS first_error_message, first_error_line AS first_error_line_number,
first_error_character AS first_error_character_pos, first_error_column AS first_error_column_name,
errors_seen AS error_count, error_limit,
CASE status WHEN 'LOADED' THEN 'Loaded' WHEN 'PARTIALLY_LOADED' THEN 'Partially loaded' ELSE 'Load failed' END
    AS status,
{database} AS table_catalog_name, schema_name AS table_schema_name, table_name,
CASE WHEN pipe_name IS NOT NULL THEN {database} END AS pipe_catalog_name, pipe_schema AS pipe_schema_name,
pipe_name, {received} AS pipe_received_time, {loaded} AS first_commit_time,
CASE WHEN pipe_name IS NOT NULL THEN file_size END AS bytes_billed

-- LOAD_COLUMNS
schema_name, file_name, table_name, {loaded} AS last_load_time, status, rows_loaded AS row_count,
rows_parsed AS row_parsed, first_error AS first_error_message, first_error_line AS first_error_line_number,
first_error_character AS first_error_character_position, first_error_column AS first_error_col_name,
errors_seen AS error_count, error_limit

-- LOADS_BY_COPY
SELECT {COPY_COLUMNS} FROM {relation} WHERE loaded_on_ms >= {since} AND {condition} ORDER BY id

-- LOADS
SELECT {LOAD_COLUMNS} FROM {relation}
WHERE loaded_on_ms >= {since} AND pipe_name IS NULL AND {condition} ORDER BY id

-- COPY_HISTORY
SELECT {COPY_COLUMNS}, {number} AS table_id, {number} AS table_schema_id, {number} AS table_catalog_id
FROM {relation} WHERE loaded_on_ms >= {since} AND {condition}

-- LOAD_HISTORY
SELECT {number} AS table_id, {number} AS schema_id, {number} AS catalog_id, {database} AS catalog_name,
    {LOAD_COLUMNS}
FROM {relation} WHERE loaded_on_ms >= {since} AND pipe_name IS NULL AND {condition}

-- ERROR_TABLE
-- The numbers of errors are those that these reasons have in Snowflake's other loads.
SELECT make_timestamp(recorded_on_ms * 1000) AT TIME ZONE 'UTC' AS "TIMESTAMP",
    CAST(NULL AS VARCHAR) AS "QUERY_ID",
    code AS "ERROR_CODE",
    json_object('service', 'snowpipe_streaming', 'error_code', code, 'error_message', error_message,
        'error_source', nullif(regexp_extract(error_message, '^column "((?:[^"]|"")*)"', 1), ''),
        'details', json_object('pipe_name', pipe_name, 'channel_name', channel_name,
            'offset_token_lower_bound', offset_token_lower_bound,
            'offset_token_upper_bound', offset_token_upper_bound,
            'error_data_truncated', false, 'error_data_content_type', kind)) AS "ERROR_METADATA",
    json_object('$1', CASE kind WHEN 'json' THEN CAST(written AS JSON) WHEN 'json-invalid'
        THEN to_json(written) ELSE to_json(to_base64(payload)) END) AS "ERROR_DATA"
FROM (SELECT *, CASE WHEN error_message LIKE '%not a JSON object%' THEN 100069
        WHEN error_message LIKE '%not valid UTF-8%' THEN 100069
        WHEN error_message LIKE '%(NOT NULL)%' THEN 100072
        WHEN error_message LIKE '%longer than%' THEN 100078 ELSE 100038 END AS code,
        CASE WHEN written IS NULL THEN 'binary-base64' WHEN json_valid(written) THEN 'json'
            ELSE 'json-invalid' END AS kind
    FROM (SELECT *, TRY(decode(payload)) AS written FROM {relation} WHERE {condition})
    ORDER BY recorded_on_ms, offset_token_upper_bound, row_in_append)
