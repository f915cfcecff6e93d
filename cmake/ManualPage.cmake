# cmake -DPROGRAM=... -DCOMMAND="db info" -DVERSION=... -DHELP2MAN=... -DPAGE=FILE -P ManualPage.cmake
# Writes the manual page of a command from its help, whose first line says what it does.
cmake_minimum_required(VERSION 3.25)
string(REPLACE " " ";" words "${COMMAND}")
execute_process(COMMAND "${PROGRAM}" ${words} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "^[^\n]*" does "${help}")
string(JOIN " " line "${PROGRAM}" ${words})
execute_process(COMMAND "${HELP2MAN}" --no-info "--version-string=${VERSION}" "--name=${does}" "${line}" OUTPUT_VARIABLE text
                COMMAND_ERROR_IS_FATAL ANY)
# A page of two words is called by both, joined by a hyphen, as `man` and `apropos` take it.
string(JOIN " " spoken qturn ${words})
string(REPLACE " " "-" name "${spoken}")
string(TOUPPER "${name}" title)
string(REGEX REPLACE "\n\\.TH [^\"]*" "\n.TH ${title} " text "${text}")
string(REPLACE "\n${spoken} \\- " "\n${name} \\- " text "${text}")
file(WRITE "${PAGE}" "${text}")
